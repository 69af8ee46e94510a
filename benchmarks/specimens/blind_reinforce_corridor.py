import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind-reinforce-corridor",
    "title": "REINFORCE with a batch baseline and entropy bonus on a corridor task",
    "family": "other",
    "needs": "cpu",
    "trap": "policy loss is noisy, around zero and of either sign while the return rises",
}


class Corridor:
    def __init__(self, n, length=9):
        self.n, self.length = n, length
        self.pos = torch.zeros(n, dtype=torch.long)

    def reset(self):
        self.goal = torch.randint(0, 2, (self.n,))
        self.pos = torch.full((self.n,), self.length // 2)
        return self.obs()

    def obs(self):
        o = torch.zeros(self.n, self.length + 2)
        o[torch.arange(self.n), self.pos] = 1.0
        o[torch.arange(self.n), self.length + self.goal] = 1.0
        return o

    def step(self, a):
        move = torch.where(torch.rand(self.n) < 0.1, 1 - a, a) * 2 - 1
        self.pos = (self.pos + move).clamp(0, self.length - 1)
        target = self.goal * (self.length - 1)
        r = (self.pos == target).float() - 0.02
        return self.obs(), r


torch.manual_seed(0)
env = Corridor(32)
policy = nn.Sequential(nn.Linear(11, 48), nn.Tanh(), nn.Linear(48, 2))
opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
baseline = 0.0
H, GAMMA = 12, 0.97

for it in range(200):
    o = env.reset()
    logps, rewards, ents = [], [], []
    for _ in range(H):
        d = Categorical(logits=policy(o))
        a = d.sample()
        logps.append(d.log_prob(a))
        ents.append(d.entropy())
        o, r = env.step(a)
        rewards.append(r)
    ret, out = torch.zeros(env.n), []
    for r in reversed(rewards):
        ret = r + GAMMA * ret
        out.append(ret)
    R = torch.stack(out[::-1])
    adv = R - R.mean(1, keepdim=True)
    adv = adv / (adv.std() + 1e-6)
    loss = -(torch.stack(logps) * adv).mean() - 0.01 * torch.stack(ents).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    total = torch.stack(rewards).sum(0).mean().item()
    baseline = 0.9 * baseline + 0.1 * total
    if it % 20 == 0 or it == 199:
        print(f"iter {it} return {total:.3f} avg {baseline:.3f} loss {loss.item():+.4f}")
