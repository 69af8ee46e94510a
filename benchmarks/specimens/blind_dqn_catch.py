"""Double DQN with replay buffer and target network on the game of catch."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-dqn-catch",
    "title": "double DQN, replay buffer, epsilon decay, hard target updates",
    "family": "other",
    "needs": "cpu",
    "trap": "loss rises when rewards arrive and after target updates, a copy of the network without gradients, samples seen repeatedly",
}

ROWS, COLS = 6, 5


class Catch:
    def __init__(self, n, g):
        self.n, self.g = n, g
        self.reset(torch.arange(n), first=True)

    def reset(self, idx, first=False):
        if first:
            self.row = torch.randint(ROWS - 1, (self.n,), generator=self.g)
            self.ball = torch.randint(COLS, (self.n,), generator=self.g)
            self.pad = torch.randint(COLS, (self.n,), generator=self.g)
        else:
            self.row[idx] = 0
            self.ball[idx] = torch.randint(COLS, (len(idx),), generator=self.g)
            self.pad[idx] = torch.randint(COLS, (len(idx),), generator=self.g)

    def obs(self):
        b = torch.zeros(self.n, ROWS, COLS)
        k = torch.arange(self.n)
        b[k, self.row, self.ball] = 1
        p = F.one_hot(self.pad, COLS).float()
        return torch.cat([b.flatten(1), p], 1)

    def step(self, a):
        self.pad = (self.pad + a - 1).clamp(0, COLS - 1)
        self.row = self.row + 1
        done = self.row == ROWS - 1
        reward = torch.where(done, torch.where(self.pad == self.ball, 1.0, -1.0), torch.tensor(0.0))
        nxt = self.obs()
        self.reset(done.nonzero().flatten())
        return reward, nxt, done.float()


class Replay:
    def __init__(self, cap, dim):
        self.s, self.s2 = torch.zeros(cap, dim), torch.zeros(cap, dim)
        self.a, self.r, self.d = torch.zeros(cap, dtype=torch.long), torch.zeros(cap), torch.zeros(cap)
        self.cap, self.n, self.i = cap, 0, 0

    def add(self, s, a, r, s2, d):
        idx = (self.i + torch.arange(len(a))) % self.cap
        self.s[idx], self.a[idx], self.r[idx], self.s2[idx], self.d[idx] = s, a, r, s2, d
        self.i = (self.i + len(a)) % self.cap
        self.n = min(self.cap, self.n + len(a))

    def sample(self, k, g):
        j = torch.randint(self.n, (k,), generator=g)
        return self.s[j], self.a[j], self.r[j], self.s2[j], self.d[j]


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    dim = ROWS * COLS + COLS
    q = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    target = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.Adam(q.parameters(), lr=2e-3)
    env, buf = Catch(32, g), Replay(8000, dim)
    updates, gamma, total = 0, 0.95, 560
    ends, wins = 0, 0
    for t in range(total + 32):
        eps = max(0.05, 1 - t / 300)
        s = env.obs()
        with torch.no_grad():
            a = q(s).argmax(1)
        rnd = torch.rand(32, generator=g) < eps
        a = torch.where(rnd, torch.randint(3, (32,), generator=g), a)
        r, s2, d = env.step(a)
        buf.add(s, a, r, s2, d)
        ends += int(d.sum())
        wins += int((r > 0).sum())
        if t < 32:
            continue
        bs, ba, br, bs2, bd = buf.sample(128, g)
        with torch.no_grad():
            best = q(bs2).argmax(1, keepdim=True)
            tgt = br + gamma * (1 - bd) * target(bs2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q(bs).gather(1, ba[:, None]).squeeze(1), tgt)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q.parameters(), 10.0)
        opt.step()
        updates += 1
        if updates % 20 == 0:
            target.load_state_dict(q.state_dict())
        if updates % 70 == 0:
            print(f"update {updates} eps {eps:.2f} loss {loss.item():.4f} catch rate {wins / max(1, ends):.3f}")
            ends = wins = 0


if __name__ == "__main__":
    main()
