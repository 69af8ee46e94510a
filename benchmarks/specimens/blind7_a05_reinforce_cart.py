"""REINFORCE with a learned baseline on a vectorised point-mass environment."""
import torch
from torch import nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind7-a05-reinforce-cart",
    "row": None,
    "title": "the KL diagnostic is computed with grad and kept in a list, so every update's graph stays alive",
    "family": "other",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

torch.manual_seed(8)


class PointMass:
    """Push a mass on a line towards a goal; reward is minus the distance."""

    def __init__(self, n):
        self.n = n

    def reset(self):
        self.pos = torch.empty(self.n).uniform_(-1, 1)
        self.vel = torch.zeros(self.n)
        self.goal = torch.empty(self.n).uniform_(-1, 1)
        return self.obs()

    def obs(self):
        return torch.stack([self.pos, self.vel, self.goal, self.goal - self.pos], -1)

    def step(self, action):
        force = (action.float() - 1.0) * 0.15
        self.vel = 0.85 * self.vel + force
        self.pos = self.pos + self.vel * 0.5
        return self.obs(), -(self.pos - self.goal).abs()


class ActorCritic(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 3)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Agent:
    def __init__(self, envs=64, horizon=20, gamma=0.95):
        self.env, self.horizon, self.gamma = PointMass(envs), horizon, gamma
        self.net = ActorCritic()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.returns, self.kls = [], []

    @torch.no_grad()
    def rollout(self):
        obs, traj = self.env.reset(), []
        for _ in range(self.horizon):
            dist, _ = self.net(obs)
            act = dist.sample()
            nxt, rew = self.env.step(act)
            traj.append((obs, act, rew, dist.log_prob(act)))
            obs = nxt
        o, a, r, lp = (torch.stack(z) for z in zip(*traj))
        ret, acc = torch.zeros_like(r), torch.zeros(r.shape[1])
        for t in reversed(range(self.horizon)):
            acc = r[t] + self.gamma * acc
            ret[t] = acc
        return o.flatten(0, 1), a.flatten(), ret.flatten(), lp.flatten(), r.sum(0).mean().item()

    def update(self):
        o, a, ret, old_lp, score = self.rollout()
        dist, value = self.net(o)
        adv = ret - value.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        loss = -(dist.log_prob(a) * adv).mean() + 0.5 * (value - ret).pow(2).mean() - 0.005 * dist.entropy().mean()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.opt.step()
        new_dist, _ = self.net(o)
        self.kls.append((old_lp - new_dist.log_prob(a)).mean())
        self.returns.append(score)


agent = Agent()
for it in range(320):
    agent.update()
    if it % 40 == 0 or it == 319:
        recent = agent.returns[-20:]
        print(f"iter {it:4d} return {sum(recent) / len(recent):8.3f} kl {agent.kls[-1].item():.5f}")
