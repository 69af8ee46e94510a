import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind-gridworld-pg",
    "title": "actor-critic policy gradient on a vectorised grid world with entropy bonus",
    "family": "other",
    "needs": "cpu",
    "trap": "loss is noisy, crosses zero and goes negative, it does not fall although the return rises; no dataset, no epochs",
}


class GridWorld:
    """n independent 6x6 grids; reach the goal, avoid the pit. Obs: one-hot agent + one-hot goal."""

    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, size=6):
        self.n, self.size = n, size
        self.pos = torch.randint(0, size, (n, 2))
        self.goal = torch.randint(0, size, (n, 2))

    def obs(self):
        f = lambda p: nn.functional.one_hot(p[:, 0] * self.size + p[:, 1], self.size**2).float()
        return torch.cat([f(self.pos), f(self.goal)], 1)

    def step(self, action):
        before = (self.pos - self.goal).abs().sum(1)
        self.pos = (self.pos + self.moves[action]).clamp(0, self.size - 1)
        after = (self.pos - self.goal).abs().sum(1)
        done = after == 0
        reward = done.float() * 1.0 - 0.02 + 0.05 * (before - after).float()
        if done.any():
            k = int(done.sum())
            self.pos[done] = torch.randint(0, self.size, (k, 2))
            self.goal[done] = torch.randint(0, self.size, (k, 2))
        return self.obs(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, d, n_actions=4, h=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi = nn.Linear(h, n_actions)
        self.v = nn.Linear(h, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def collect(env, net, obs, horizon, gamma):
    logs = dict(logp=[], value=[], reward=[], done=[], ent=[])
    for _ in range(horizon):
        dist, v = net(obs)
        a = dist.sample()
        logs["logp"].append(dist.log_prob(a))
        logs["ent"].append(dist.entropy())
        logs["value"].append(v)
        obs, r, d = env.step(a)
        logs["reward"].append(r)
        logs["done"].append(d.float())
    with torch.no_grad():
        _, ret = net(obs)
    returns = []
    for r, d in zip(reversed(logs["reward"]), reversed(logs["done"])):
        ret = r + gamma * ret * (1 - d)
        returns.insert(0, ret)
    out = {k: torch.stack(v) for k, v in logs.items()}
    out["returns"] = torch.stack(returns)
    return obs, out


def main():
    torch.manual_seed(1)
    env = GridWorld(32)
    obs = env.obs()
    net = ActorCritic(obs.size(1))
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)
    avg = None
    for update in range(400):
        obs, roll = collect(env, net, obs, horizon=8, gamma=0.95)
        adv = (roll["returns"] - roll["value"]).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        policy = -(roll["logp"] * adv).mean()
        value = (roll["returns"] - roll["value"]).pow(2).mean()
        loss = policy + 0.5 * value - 0.01 * roll["ent"].mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        r = roll["reward"].mean().item()
        avg = r if avg is None else 0.95 * avg + 0.05 * r
        if update % 40 == 0 or update == 399:
            print(
                f"update {update} loss {loss.item():+.4f} reward/step {avg:.4f} entropy {roll['ent'].mean().item():.3f}"
            )


if __name__ == "__main__":
    main()
