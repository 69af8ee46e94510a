"""REINFORCE with a learned baseline on a small corridor."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {"id": "blind-corridor-policy", "title": "policy gradient with baseline and entropy bonus", "family": "other", "needs": "cpu",
           "trap": "noisy loss of either sign that does not go down; the return is what improves"}

N, MAX_T, ENVS, UPDATES = 7, 20, 24, 140


class Corridor:
    """Start anywhere, reach the marked end; the mark is part of the observation."""

    def __init__(self, n, g):
        self.n, self.g = n, g

    def reset(self):
        self.pos = torch.randint(1, N - 1, (self.n,), generator=self.g)
        self.goal = torch.randint(0, 2, (self.n,), generator=self.g) * (N - 1)
        self.done = torch.zeros(self.n, dtype=torch.bool)
        return self.obs()

    def obs(self):
        return torch.cat([nn.functional.one_hot(self.pos, N), (self.goal > 0).long().unsqueeze(1)], 1).float()

    def step(self, a):
        alive = ~self.done
        move = (2 * a - 1) * alive
        self.pos = (self.pos + move).clamp(0, N - 1)
        hit = alive & (self.pos == self.goal)
        r = hit.float() - 0.05 * alive.float()
        self.done |= hit
        return self.obs(), r, alive


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(N + 1, 48), nn.Tanh())
        self.pi, self.v = nn.Linear(48, 2), nn.Linear(48, 1)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


torch.manual_seed(0)
env = Corridor(ENVS, torch.Generator().manual_seed(4))
net = ActorCritic()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
avg = None
for update in range(UPDATES):
    o = env.reset()
    logp, val, rew, mask, ent = [], [], [], [], []
    for _ in range(MAX_T):
        d, v = net(o)
        a = d.sample()
        logp.append(d.log_prob(a)); val.append(v); ent.append(d.entropy())
        o, r, alive = env.step(a)
        rew.append(r); mask.append(alive.float())
        if env.done.all():
            break
    ret, run = [], torch.zeros(ENVS)
    for r in reversed(rew):
        run = r + 0.97 * run
        ret.append(run)
    ret, m = torch.stack(ret[::-1]), torch.stack(mask)
    logp, val, ent = torch.stack(logp), torch.stack(val), torch.stack(ent)
    adv = ret - val.detach()
    adv = (adv - adv[m > 0].mean()) / (adv[m > 0].std() + 1e-6)
    loss = (m * (-logp * adv + 0.5 * (ret - val) ** 2 - 0.01 * ent)).sum() / m.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    score = torch.stack(rew).sum(0).mean().item()
    avg = score if avg is None else 0.9 * avg + 0.1 * score
    if (update + 1) % 20 == 0:
        print(f"update {update + 1} loss {loss.item():+.3f} return {avg:+.3f}")
