from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

TRUTH = {
    "id": "blind4-corridor-ac",
    "title": "Actor and critic have one optimizer each, but only the actor's gradients are zeroed; the critic's gradients are a running sum over all updates.",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["missing-zero-grad"],
    "bricks": ["critic"],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}


class Corridor:
    """Batch of 1-D worlds: move left/stay/right towards a goal, -|distance| shaping."""

    def __init__(self, n, gen, horizon=9):
        self.n, self.gen, self.horizon = n, gen, horizon

    def reset(self):
        self.pos = torch.rand(self.n, generator=self.gen) * 4 - 2
        self.goal = torch.rand(self.n, generator=self.gen) * 4 - 2
        self.t = 0
        return self.obs()

    def obs(self):
        left = torch.full((self.n,), 1 - self.t / self.horizon)
        return torch.stack([self.pos, self.goal, self.goal - self.pos, left], 1)

    def step(self, a):
        self.pos = self.pos + (a.float() - 1) * 0.4 + 0.05 * torch.randn(self.n, generator=self.gen)
        self.t += 1
        r = -(self.goal - self.pos).abs()
        return self.obs(), r, self.t >= self.horizon


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, o))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = mlp(4, 3)
        self.critic = mlp(4, 1)

    def forward(self, s):
        return Categorical(logits=self.actor(s)), self.critic(s).squeeze(-1)


def train(updates=200, gamma=0.95):
    gen = torch.Generator().manual_seed(1)
    env = Corridor(32, gen)
    agent = Agent()
    pi_opt = torch.optim.Adam(agent.actor.parameters(), lr=2e-3)
    v_opt = torch.optim.Adam(agent.critic.parameters(), lr=2e-3)
    history = deque(maxlen=20)
    for u in range(updates):
        s, done = env.reset(), False
        logps, vals, rews, ents = [], [], [], []
        while not done:
            dist, v = agent(s)
            a = dist.sample()
            logps.append(dist.log_prob(a))
            ents.append(dist.entropy())
            vals.append(v)
            s, r, done = env.step(a)
            rews.append(r)
        ret, acc = [], torch.zeros(env.n)
        for r in reversed(rews):
            acc = r + gamma * acc
            ret.insert(0, acc)
        ret = torch.stack(ret)
        vals, logps, ents = torch.stack(vals), torch.stack(logps), torch.stack(ents)
        adv = ret - vals.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)

        pi_opt.zero_grad()
        pi_loss = -(logps * adv).mean() - 0.01 * ents.mean()
        pi_loss.backward()
        pi_opt.step()

        v_loss = F.smooth_l1_loss(vals, ret)
        v_loss.backward()
        v_opt.step()

        history.append(torch.stack(rews).sum(0).mean().item())
        if u % 25 == 0:
            vg = sum(p.grad.pow(2).sum() for p in agent.critic.parameters()).sqrt().item()
            print(f"update {u:3d} return {sum(history)/len(history):8.3f} v_loss {v_loss.item():.3f} v_grad {vg:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(21)
    train()
