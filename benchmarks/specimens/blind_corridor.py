"""REINFORCE with a value baseline on a windy grid (vectorised)."""

import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind-corridor",
    "title": "policy gradient with baseline on a windy grid",
    "family": "other",
    "needs": "cpu",
    "trap": "the loss is noisy, changes sign and does not go down; the return goes up; entropy falls",
}

SIZE, HORIZON, ENVS, UPDATES, GAMMA = 6, 16, 32, 120, 0.97
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class WindyGrid:
    def __init__(self, n):
        self.n = n

    def reset(self):
        self.pos = torch.zeros(self.n, 2, dtype=torch.long)
        self.goal = torch.randint(2, SIZE, (self.n, 2))
        self.done = torch.zeros(self.n, dtype=torch.bool)
        return self.obs()

    def obs(self):
        return torch.cat(
            [self.pos.float() / SIZE - 0.5, self.goal.float() / SIZE - 0.5, (self.goal - self.pos).float().sign()],
            dim=1,
        )

    def step(self, action):
        windy = torch.rand(self.n) < 0.1
        action = torch.where(windy, torch.randint(0, 4, (self.n,)), action)
        self.pos = torch.where(self.done[:, None], self.pos, (self.pos + MOVES[action]).clamp(0, SIZE - 1))
        reached = (self.pos == self.goal).all(1) & ~self.done
        reward = torch.where(self.done, 0.0, torch.where(reached, 1.0, -0.02))
        alive = ~self.done
        self.done = self.done | reached
        return self.obs(), reward, alive


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 4)
        self.v = nn.Linear(64, 1)

    def forward(self, o):
        h = self.body(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main():
    torch.manual_seed(0)
    env, agent = WindyGrid(ENVS), ActorCritic()
    opt = torch.optim.Adam(agent.parameters(), lr=3e-3)
    recent = []
    for update in range(UPDATES):
        obs = env.reset()
        logps, values, rewards, masks, ents = [], [], [], [], []
        for _ in range(HORIZON):
            dist, value = agent(obs)
            action = dist.sample()
            obs, reward, alive = env.step(action)
            logps.append(dist.log_prob(action))
            values.append(value)
            rewards.append(reward)
            masks.append(alive.float())
            ents.append(dist.entropy())
        returns, running = [], torch.zeros(ENVS)
        for r in reversed(rewards):
            running = r + GAMMA * running
            returns.insert(0, running)
        ret, val, m = torch.stack(returns), torch.stack(values), torch.stack(masks)
        adv = (ret - val).detach()
        adv = (adv - (adv * m).sum() / m.sum()) / ((adv**2 * m).sum() / m.sum()).sqrt().clamp(min=1e-3)
        policy_loss = -(torch.stack(logps) * adv * m).sum() / m.sum()
        value_loss = ((val - ret) ** 2 * m).sum() / m.sum()
        entropy = (torch.stack(ents) * m).sum() / m.sum()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        opt.step()
        recent.append(torch.stack(rewards).sum(0).mean().item())
        if (update + 1) % 20 == 0:
            print(
                f"update {update + 1}: return {sum(recent[-20:]) / 20:.3f} loss {loss.item():+.3f} entropy {entropy.item():.3f}"
            )


if __name__ == "__main__":
    main()
