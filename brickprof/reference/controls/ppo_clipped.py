"""Proximal policy optimisation on a small control problem: a shared trunk, several passes over each roll-out."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

TRUTH = {
    "id": "ppo-clipped",
    "title": "clipped ratio, value loss, entropy bonus",
    "family": "other",
    "trap": "every roll-out is used four times; the ratio is exactly 1 at first, so the policy loss is exactly about 0",
    "needs": "cpu",
}


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
        self.action = nn.Linear(32, 1)
        self.value = nn.Linear(32, 1)
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def forward(self, state):
        h = self.trunk(state)
        return Normal(self.action(h).squeeze(-1), self.log_std.exp()), self.value(h).squeeze(-1)


@torch.no_grad()
def rollout(agent, count=32, length=16, gamma=0.9):
    state = torch.randn(count, 2)
    kept = []
    for _ in range(length):
        choice, value = agent(state)
        action = choice.sample()
        reward = -(state[:, 0] ** 2) - 0.1 * state[:, 1] ** 2
        kept.append((state, action, choice.log_prob(action), reward, value))
        speed = 0.9 * state[:, 1] + 0.3 * action.clamp(-2, 2)
        state = torch.stack([state[:, 0] + 0.3 * speed, speed], dim=1).clamp(-3, 3)
    states, actions, logs, rewards, values = (torch.stack(part) for part in zip(*kept, strict=True))
    returns, future = [], agent(state)[1]
    for reward in rewards.flip(0):
        future = reward + gamma * future
        returns.append(future)
    returns = torch.stack(returns[::-1])
    return [x.flatten(0, 1) for x in (states, actions, logs, returns, returns - values)], rewards.mean().item()


torch.set_num_threads(1)
torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
for iteration in range(12):
    (states, actions, logs, returns, advantages), reward = rollout(agent)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(4):
        for rows in torch.randperm(len(states)).split(128):
            choice, value = agent(states[rows])
            ratio = (choice.log_prob(actions[rows]) - logs[rows]).exp()
            gain = torch.min(ratio * advantages[rows], ratio.clamp(0.8, 1.2) * advantages[rows]).mean()
            loss = -gain + 0.5 * F.smooth_l1_loss(value, returns[rows]) - 0.005 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"iteration {iteration} reward {reward:.3f} loss {loss.item():+.4f}")
