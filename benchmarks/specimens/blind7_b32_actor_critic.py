TRUTH = {"id": "blind7-b32-actor-critic", "title": "healthy advantage actor-critic on a vectorised corridor world", "family": "mlp", "needs": "cpu",
         "trap": "noisy returns, policy loss around zero of either sign, entropy falls, advantage detached, value loss rises first"}
import argparse

import torch
from torch import nn
from torch.distributions import Categorical


class Corridors:
    """n independent walkers on a 7x7 board; reach the flag; 30 moves at most"""

    def __init__(self, n, gen):
        self.n, self.gen, self.size = n, gen, 7
        self.pos = torch.zeros(n, 2, dtype=torch.long)
        self.goal = torch.zeros(n, 2, dtype=torch.long)
        self.t = torch.zeros(n, dtype=torch.long)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, m):
        k = int(m.sum())
        self.pos[m] = torch.randint(0, self.size, (k, 2), generator=self.gen)
        self.goal[m] = torch.randint(0, self.size, (k, 2), generator=self.gen)
        self.t[m] = 0

    def obs(self):
        return torch.cat([self.pos, self.goal, self.goal - self.pos], 1).float() / self.size

    def step(self, a):
        delta = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])[a]
        self.pos = (self.pos + delta).clamp(0, self.size - 1)
        self.t += 1
        hit = (self.pos == self.goal).all(1)
        done = hit | (self.t >= 30)
        r = hit.float() - 0.02
        self.reset(done)
        return r, done, hit


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 4)
        self.v = nn.Linear(64, 1)
        nn.init.orthogonal_(self.pi.weight, 0.01)

    def forward(self, o):
        h = self.trunk(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=300)
    ap.add_argument("--envs", type=int, default=48)
    ap.add_argument("--horizon", type=int, default=8)
    ap.add_argument("--gamma", type=float, default=0.95)
    a = ap.parse_args()
    torch.manual_seed(0)
    env = Corridors(a.envs, torch.Generator().manual_seed(1))
    agent = Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=a.updates)
    wins = ends = 0
    for u in range(a.updates):
        lp, vs, rs, ds, ent = [], [], [], [], []
        for _ in range(a.horizon):
            d, v = agent(env.obs())
            act = d.sample()
            r, done, hit = env.step(act)
            lp.append(d.log_prob(act)); vs.append(v); rs.append(r); ds.append(done.float()); ent.append(d.entropy())
            wins += hit.sum().item(); ends += done.sum().item()
        with torch.no_grad():
            R = agent(env.obs())[1]
        rets = []
        for r, d in zip(reversed(rs), reversed(ds)):
            R = r + a.gamma * R * (1 - d)
            rets.append(R)
        rets = torch.stack(rets[::-1])
        vs = torch.stack(vs)
        adv = (rets - vs).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        loss = -(torch.stack(lp) * adv).mean() + 0.5 * (rets - vs).pow(2).mean() - 0.01 * torch.stack(ent).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        opt.step()
        sched.step()
        if u % 30 == 29:
            print(f"update {u + 1} loss {loss.item():+.3f} solved {wins}/{ends} = {wins / max(ends, 1):.2f} mean len {30 * a.envs * a.horizon / max(ends, 1):.1f}")
            wins = ends = 0


if __name__ == "__main__":
    main()
