import copy
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-dqn",
    "title": "Healthy double DQN on a small chase world with replay and a slowly updated target network.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "the target network has no gradients and no optimizer and moves outside it, the TD loss rises while values grow, samples are replayed many times, only the taken action's output gets gradient",
}


class Chase:
    def __init__(self):
        self.reset()

    def reset(self):
        self.a, self.b, self.t = random.randint(0, 8), random.randint(0, 8), 0
        return self.state()

    def state(self):
        return [self.a / 4 - 1, self.b / 4 - 1, (self.b - self.a) / 8]

    def step(self, act):
        self.a = min(8, max(0, self.a + act - 1))
        self.t += 1
        hit = self.a == self.b
        r = 1.0 if hit else -0.05
        return self.state(), r, hit or self.t >= 20


class QNet(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.value, self.adv = nn.Linear(h, 1), nn.Linear(h, 3)

    def forward(self, s):
        h = self.trunk(s)
        a = self.adv(h)
        return self.value(h) + a - a.mean(-1, keepdim=True)


class DQN:
    def __init__(self, lr=1e-3, gamma=0.95, tau=0.02):
        self.q = QNet()
        self.target = copy.deepcopy(self.q)
        for p in self.target.parameters():
            p.requires_grad_(False)
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.mem = deque(maxlen=4000)
        self.gamma, self.tau = gamma, tau

    def act(self, s, eps):
        if random.random() < eps:
            return random.randrange(3)
        with torch.no_grad():
            return int(self.q(torch.tensor([s])).argmax())

    def learn(self, batch=64):
        s, a, r, s2, d = map(torch.tensor, zip(*random.sample(self.mem, batch)))
        with torch.no_grad():
            best = self.q(s2).argmax(1, keepdim=True)
            tgt = r + self.gamma * (1 - d) * self.target(s2).gather(1, best).squeeze(1)
        pred = self.q(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(pred, tgt)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.opt.step()
        with torch.no_grad():
            for t, p in zip(self.target.parameters(), self.q.parameters()):
                t.lerp_(p, self.tau)
        return loss.item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(70)
    random.seed(70)
    env, agent = Chase(), DQN()
    s, total, rets, updates = env.reset(), 0.0, deque(maxlen=40), 0
    for i in range(2000):
        a = agent.act(s, max(0.05, 1 - i / 1000))
        s2, r, done = env.step(a)
        agent.mem.append((s, a, r, s2, float(done)))
        total += r
        s = s2
        if done:
            rets.append(total)
            s, total = env.reset(), 0.0
        if i >= 400 and i % 4 == 0:
            loss = agent.learn()
            updates += 1
            if updates % 50 == 0:
                print(f"update {updates} td {loss:.4f} return {sum(rets) / len(rets):.3f}")


if __name__ == "__main__":
    main()
