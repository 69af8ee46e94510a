import argparse
import copy
import random
from collections import deque
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_dqn_grid",
    "title": "A healthy double dueling DQN with a slowly following target network on a small corridor.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "The temporal-difference loss does not fall steadily since its targets move, the target network is frozen and copied by lerp, replay batches overlap.",
}


class Corridor:
    """Agent on a line with a moving goal; observation is (position, goal, time left)."""

    def __init__(self, rng, size=9, horizon=20):
        self.rng, self.size, self.horizon = rng, size, horizon

    def reset(self):
        self.pos = int(self.rng.integers(0, self.size))
        self.goal = int(self.rng.integers(0, self.size))
        self.t = 0
        return self.obs()

    def obs(self):
        return np.array([self.pos / 4 - 1, self.goal / 4 - 1, (self.goal - self.pos) / 4, 1 - self.t / self.horizon], np.float32)

    def step(self, a):
        self.pos = int(np.clip(self.pos + (a - 1), 0, self.size - 1))
        self.t += 1
        r = 1.0 if self.pos == self.goal else -0.05
        done = self.pos == self.goal or self.t >= self.horizon
        return self.obs(), r, done


class DuelingQ(nn.Module):
    def __init__(self, obs, actions, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value = nn.Linear(width, 1)
        self.adv = nn.Linear(width, actions)

    def forward(self, x):
        h = self.trunk(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


class Replay:
    def __init__(self, cap, seed):
        self.buf, self.rng = deque(maxlen=cap), random.Random(seed)

    def push(self, *tr):
        self.buf.append(tr)

    def sample(self, n):
        s, a, r, s2, d = zip(*self.rng.sample(self.buf, n))
        return (torch.from_numpy(np.stack(s)), torch.tensor(a), torch.tensor(r, dtype=torch.float32),
                torch.from_numpy(np.stack(s2)), torch.tensor(d, dtype=torch.float32))


def soft_update(target, online, tau):
    with torch.no_grad():
        for pt, po in zip(target.parameters(), online.parameters()):
            pt.lerp_(po, tau)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--frames", type=int, default=2600)
    p.add_argument("--learn-start", type=int, default=200)
    p.add_argument("--train-every", type=int, default=8)
    p.add_argument("--gamma", type=float, default=0.95)
    p.add_argument("--tau", type=float, default=0.05)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--batch", type=int, default=64)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env = Corridor(rng)
    online = DuelingQ(4, 3)
    target = copy.deepcopy(online).requires_grad_(False)
    opt = torch.optim.SGD(online.parameters(), lr=a.lr, momentum=0.9)
    replay = Replay(5000, 0)
    s, ep_ret, returns, updates = env.reset(), 0.0, deque(maxlen=40), 0
    for frame in range(a.frames):
        eps = max(0.1, 1 - frame / 1500)
        if rng.random() < eps:
            act = int(rng.integers(0, 3))
        else:
            with torch.no_grad():
                act = int(online(torch.from_numpy(s)[None]).argmax())
        s2, r, done = env.step(act)
        replay.push(s, act, r, s2, float(done))
        ep_ret += r
        s = s2
        if done:
            returns.append(ep_ret)
            ep_ret, s = 0.0, env.reset()
        if frame >= a.learn_start and frame % a.train_every == 0:
            bs, ba, br, bs2, bd = replay.sample(a.batch)
            with torch.no_grad():
                best = online(bs2).argmax(1, keepdim=True)
                y = br + a.gamma * (1 - bd) * target(bs2).gather(1, best).squeeze(1)
            q = online(bs).gather(1, ba[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(q, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            soft_update(target, online, a.tau)
            updates += 1
            if updates % 20 == 0:
                print(f"update {updates} td {loss.item():.4f} q {q.mean().item():.3f} return {np.mean(returns):.3f}")


if __name__ == "__main__":
    main()
