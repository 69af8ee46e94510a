import argparse
from collections import deque

import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {"id": "blind5-c36-reinforce-curriculum", "title": "actor-critic on a corridor with a growing length; early stopping once the longest is solved", "family": "other",
           "needs": "cpu", "trap": "policy loss is noisy and does not fall, value loss jumps at every curriculum stage, batch length varies"}


class Corridor:
    """Walk to the marked end; the mark is shown only as a sign in the observation."""

    def __init__(self, n, length):
        self.n, self.length = n, length
        self.pos = torch.zeros(n)
        self.goal = torch.randint(0, 2, (n,)).float() * 2 - 1
        self.t = 0

    def obs(self):
        noise = 0.3 * torch.randn(self.n, 2)
        return torch.stack([self.pos / 8, self.goal, torch.full((self.n,), self.t / 20), torch.full((self.n,), self.length / 8)], 1) + \
            torch.cat([torch.zeros(self.n, 1), noise[:, :1], torch.zeros(self.n, 2)], 1)

    def step(self, a):
        alive = self.pos.abs() < self.length
        self.pos = torch.where(alive, self.pos + (a.float() * 2 - 1), self.pos)
        arrived = alive & (self.pos.abs() >= self.length)
        r = torch.where(arrived, torch.sign(self.pos) * self.goal, torch.zeros(self.n)) - 0.02 * alive.float()
        self.t += 1
        return r, alive.float()


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi, self.v = nn.Linear(hidden, 2), nn.Linear(hidden, 1)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def play(net, length, n, horizon):
    env, traj = Corridor(n, length), []
    for _ in range(horizon):
        dist, value = net(env.obs())
        a = dist.sample()
        r, alive = env.step(a)
        traj.append((dist.log_prob(a), dist.entropy(), value, r, alive))
        if not alive.any():
            break
    return [torch.stack(t) for t in zip(*traj)]


def main(a):
    torch.manual_seed(a.seed)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    length, recent = 1, deque(maxlen=10)
    for it in range(a.iters):
        logp, ent, value, r, alive = play(net, length, a.envs, 4 * length + 4)
        ret, acc = torch.zeros_like(r), torch.zeros(a.envs)
        for t in reversed(range(len(r))):
            acc = r[t] + a.gamma * acc
            ret[t] = acc
        n = alive.sum()
        adv = (ret - value).detach()
        mu = (adv * alive).sum() / n
        sd = (((adv - mu) ** 2 * alive).sum() / n).sqrt()
        adv = (adv - mu) / (sd + 1e-6)
        pl = -(logp * adv * alive).sum() / n
        vl = ((value - ret) ** 2 * alive).sum() / n
        loss = pl + 0.5 * vl - a.entropy * (ent * alive).sum() / n
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        recent.append(r.sum(0).mean().item())
        score = sum(recent) / len(recent)
        if it % 20 == 0:
            print(f"{it:4d} length {length} return {score:+.3f} pl {pl.item():+.3f} vl {vl.item():.3f} H {ent.mean().item():.3f}")
        if len(recent) == 10 and score > 0.85 - 0.03 * length:
            if length == a.max_length:
                print(f"solved at iteration {it}, return {score:+.3f}")
                break
            length, recent = length + 1, deque(maxlen=10)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=500)
    p.add_argument("--envs", type=int, default=48)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--entropy", type=float, default=0.02)
    p.add_argument("--max-length", type=int, default=8)
    p.add_argument("--seed", type=int, default=3)
    main(p.parse_args())
