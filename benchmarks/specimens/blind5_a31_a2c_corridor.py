"""Advantage actor-critic on a small windy corridor."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {"id": "blind5-a31-a2c-corridor", "title": "A2C on a vectorised corridor; policy loss is noisy and changes sign, return rises",
           "family": "other", "needs": "cpu",
           "trap": "loss around zero and not decreasing, entropy falls, non-stationary data"}


class Corridor:
    """N parallel walkers; reach the right goal cell before time runs out."""

    def __init__(self, n=16, size=10, limit=30):
        self.n, self.size, self.limit = n, size, limit
        self.pos = torch.zeros(n, dtype=torch.long)
        self.goal = torch.zeros(n, dtype=torch.long)
        self.t = torch.zeros(n, dtype=torch.long)
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, m):
        k = int(m.sum())
        self.pos[m] = torch.randint(0, self.size, (k,))
        self.goal[m] = torch.randint(0, self.size, (k,))
        self.t[m] = 0

    def obs(self):
        p = nn.functional.one_hot(self.pos, self.size)
        g = nn.functional.one_hot(self.goal, self.size)
        return torch.cat([p, g], 1).float()

    def step(self, a):
        wind = (torch.rand(self.n) < 0.1).long()
        move = torch.tensor([-1, 0, 1])[a] * (1 - wind)
        self.pos = (self.pos + move).clamp(0, self.size - 1)
        self.t += 1
        hit = (self.pos == self.goal) & (a == 1)
        reward = hit.float() - 0.03
        done = hit | (self.t >= self.limit)
        if done.any():
            self._reset(done)
        return self.obs(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, obs, acts):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, acts)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


torch.manual_seed(0)
env = Corridor()
net = ActorCritic(20, 3)
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
UPDATES, HORIZON, GAMMA = 450, 8, 0.95
lr_decay = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, UPDATES)
obs, ep_ret = env.obs(), torch.zeros(env.n)
finished = []

for u in range(UPDATES):
    logps, vals, rews, masks, ents = [], [], [], [], []
    for _ in range(HORIZON):
        dist, v = net(obs)
        a = dist.sample()
        obs, r, done = env.step(a)
        logps.append(dist.log_prob(a)); vals.append(v); rews.append(r)
        masks.append(1 - done.float()); ents.append(dist.entropy())
        ep_ret += r
        finished += ep_ret[done].tolist()
        ep_ret[done] = 0
    with torch.no_grad():
        ret = net(obs)[1]
    returns = []
    for r, m in zip(reversed(rews), reversed(masks)):
        ret = r + GAMMA * m * ret
        returns.insert(0, ret)
    R, V = torch.stack(returns), torch.stack(vals)
    adv = (R - V).detach()
    pg = -(torch.stack(logps) * adv).mean()
    loss = pg + 0.5 * (R - V).pow(2).mean() - 0.01 * torch.stack(ents).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    lr_decay.step()
    if u % 50 == 49:
        last = finished[-200:]
        print(f"update {u + 1:4d} loss {loss.item():+.4f} mean return {sum(last) / max(1, len(last)):+.3f} episodes {len(finished)}")
