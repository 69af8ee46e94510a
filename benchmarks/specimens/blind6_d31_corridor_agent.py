"""Advantage actor-critic on a vectorised corridor."""
import torch
from torch import nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind6-d31-corridor-agent",
    "title": "healthy actor-critic, 16 parallel corridors",
    "family": "mlp",
    "needs": "cpu",
    "trap": "policy loss is noisy, changes sign and does not go down; entropy falls; batches come from the policy itself",
}


class Corridor:
    """Walk to the flag (left or right, shown in the observation); +1 at the flag, small cost per move."""

    def __init__(self, n, size=9):
        self.n, self.size = n, size
        self.pos = torch.full((n,), size // 2)
        self.goal = torch.randint(0, 2, (n,)) * (size - 1)
        self.t = torch.zeros(n, dtype=torch.long)

    def obs(self):
        o = torch.stack([self.pos / (self.size - 1) * 2 - 1, self.goal / (self.size - 1) * 2 - 1,
                         self.t / 10 - 1, torch.randn(self.n)], 1)
        return o

    def step(self, a):
        self.pos = (self.pos + (2 * a - 1)).clamp(0, self.size - 1)
        self.t += 1
        hit = self.pos == self.goal
        done = hit | (self.t >= 20)
        r = hit.float() - 0.02
        k = int(done.sum())
        self.pos[done] = self.size // 2
        self.goal[done] = torch.randint(0, 2, (k,)) * (self.size - 1)
        self.t[done] = 0
        return r, done.float()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 2)
        self.v = nn.Linear(64, 1)
        nn.init.orthogonal_(self.pi.weight, 0.01)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


torch.manual_seed(2)
env, agent = Corridor(16), Agent()
UPDATES, T, GAMMA = 200, 12, 0.97
opt = torch.optim.RMSprop(agent.parameters(), lr=2e-3, eps=1e-5, alpha=0.99)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=UPDATES)
avg = 0.0
for u in range(UPDATES):
    logp, ent, val, rew, dn = [], [], [], [], []
    for _ in range(T):
        d, v = agent(env.obs())
        a = d.sample()
        r, done = env.step(a)
        logp.append(d.log_prob(a)); ent.append(d.entropy()); val.append(v); rew.append(r); dn.append(done)
    with torch.no_grad():
        ret = agent(env.obs())[1]
    rets = []
    for r, done in zip(reversed(rew), reversed(dn)):
        ret = r + GAMMA * ret * (1 - done)
        rets.append(ret)
    rets = torch.stack(rets[::-1])
    val, logp = torch.stack(val), torch.stack(logp)
    adv = (rets - val).detach()
    loss = -(logp * adv).mean() + 0.5 * (rets - val).square().mean() - 0.01 * torch.stack(ent).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    opt.step()
    sched.step()
    avg = 0.9 * avg + 0.1 * torch.stack(rew).mean().item()
    if (u + 1) % 25 == 0:
        print(f"update {u + 1} loss {loss.item():+.4f} reward/step {avg:.4f} entropy {torch.stack(ent).mean().item():.3f}")
