import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind-catch-reinforce",
    "title": "REINFORCE with a learned baseline on the game of catch",
    "family": "other",
    "needs": "cpu",
    "trap": "the policy loss is noisy, changes sign and does not fall; only the return rises; the same few states return all the time",
}

ROWS, COLS, ENVS = 8, 7, 48


class Catch:
    def __init__(self, envs, gen):
        self.gen, self.envs = gen, envs

    def reset(self):
        self.ball = torch.randint(0, COLS, (self.envs,), generator=self.gen)
        self.drift = torch.randint(-1, 2, (self.envs,), generator=self.gen)
        self.paddle = torch.full((self.envs,), COLS // 2)
        self.row = 0
        return self.observe()

    def observe(self):
        one = torch.nn.functional.one_hot
        row = torch.full((self.envs, 1), self.row / ROWS)
        return torch.cat(
            [one(self.ball, COLS).float(), one(self.paddle, COLS).float(), self.drift[:, None].float(), row], 1
        )

    def step(self, action):
        self.paddle = (self.paddle + action - 1).clamp(0, COLS - 1)
        if self.row % 3 == 0:
            self.ball = (self.ball + self.drift).clamp(0, COLS - 1)
        self.row += 1
        done = self.row == ROWS
        reward = torch.where(self.ball == self.paddle, 1.0, -1.0) if done else torch.zeros(self.envs)
        return self.observe(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, obs, hidden=64, actions=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy, self.value = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.trunk(x)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


def main(updates=400, gamma=0.97):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env = Catch(ENVS, torch.Generator().manual_seed(1))
    agent = ActorCritic(2 * COLS + 2)
    opt = torch.optim.Adam(agent.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=updates)
    smooth = -1.0
    for it in range(1, updates + 1):
        obs, done = env.reset(), False
        logp, values, rewards, entropy = [], [], [], []
        while not done:
            dist, v = agent(obs)
            a = dist.sample()
            obs, r, done = env.step(a)
            logp.append(dist.log_prob(a))
            entropy.append(dist.entropy())
            values.append(v)
            rewards.append(r)
        ret, out = torch.zeros(ENVS), []
        for r in reversed(rewards):
            ret = r + gamma * ret
            out.append(ret)
        returns, values = torch.stack(out[::-1]), torch.stack(values)
        adv = returns - values.detach()
        policy_loss = -(torch.stack(logp) * adv).mean()
        value_loss = (returns - values).pow(2).mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * torch.stack(entropy).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        opt.step()
        sched.step()
        smooth = 0.95 * smooth + 0.05 * sum(rewards).mean().item()
        if it % 40 == 0:
            print(f"update {it} return {smooth:+.3f} policy {policy_loss.item():+.4f} value {value_loss.item():.4f}")


if __name__ == "__main__":
    main()
