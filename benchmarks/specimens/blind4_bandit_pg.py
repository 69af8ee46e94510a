import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind4-bandit-pg",
    "title": "Healthy REINFORCE on a grid navigation task with normalised advantages.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "the surrogate loss hovers around zero, changes sign and does not fall, gradients are noisy; only the reward shows progress",
}


class GridTask:
    def __init__(self, n, size, gen):
        self.n, self.size, self.gen = n, size, gen

    def reset(self):
        self.p = torch.randint(0, self.size, (self.n, 2), generator=self.gen)
        self.g = torch.randint(0, self.size, (self.n, 2), generator=self.gen)
        return self.obs()

    def obs(self):
        return torch.cat([self.p, self.g], 1).float() / (self.size - 1) * 2 - 1

    def step(self, a):
        moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])
        before = (self.p - self.g).abs().sum(1)
        self.p = (self.p + moves[a]).clamp(0, self.size - 1)
        after = (self.p - self.g).abs().sum(1)
        return self.obs(), (before - after).float() - 0.1 * (after > 0).float()


class Policy(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.logits = nn.Linear(h, 5)

    def forward(self, s):
        return Categorical(logits=self.logits(self.body(s)))


def returns(rewards, gamma):
    out, acc = [], torch.zeros_like(rewards[0])
    for r in reversed(rewards):
        acc = r + gamma * acc
        out.append(acc)
    return torch.stack(out[::-1])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(19)
    env = GridTask(64, 6, torch.Generator().manual_seed(20))
    pi = Policy()
    opt = torch.optim.Adam(pi.parameters(), lr=4e-3)
    for it in range(260):
        s = env.reset()
        logp, ent, rew = [], [], []
        for _ in range(8):
            d = pi(s)
            a = d.sample()
            s, r = env.step(a)
            logp.append(d.log_prob(a))
            ent.append(d.entropy())
            rew.append(r)
        R = returns(rew, 0.8)
        adv = (R - R.mean(1, keepdim=True)) / (R.std() + 1e-6)
        loss = -(torch.stack(logp) * adv).mean() - 0.005 * torch.stack(ent).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pi.parameters(), 0.5)
        opt.step()
        if it % 20 == 0 or it == 259:
            print(f"it {it} loss {loss.item():+.4f} reward {torch.stack(rew).sum(0).mean().item():.3f}")


main()
