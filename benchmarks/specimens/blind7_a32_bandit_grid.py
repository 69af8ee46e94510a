"""Actor-critic on a small wind-blown grid, one noisy batch of episodes per update."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind7-a32-bandit-grid", "title": "healthy actor-critic on a windy grid with an entropy bonus that is annealed", "family": "other",
         "needs": "cpu", "trap": "policy loss is noisy around zero and negative at times; returns vary a lot from update to update"}

SIDE, HORIZON, N = 5, 14, 48
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Grid:
    def reset(self, n):
        self.pos = torch.randint(0, SIDE, (n, 2))
        self.goal = torch.tensor([SIDE - 1, SIDE - 1]).expand(n, 2)
        self.done = torch.zeros(n, dtype=torch.bool)
        return self.view()

    def view(self):
        return F.one_hot(self.pos[:, 0] * SIDE + self.pos[:, 1], SIDE * SIDE).float()

    def step(self, a):
        wind = torch.rand(len(a)) < 0.1
        a = torch.where(wind, torch.randint(0, 4, a.shape), a)
        new = (self.pos + MOVES[a]).clamp(0, SIDE - 1)
        self.pos = torch.where(self.done[:, None], self.pos, new)
        hit = (self.pos == self.goal).all(1)
        reward = torch.where(self.done, 0.0, torch.where(hit, 1.0, -0.04))
        alive = ~self.done
        self.done = self.done | hit
        return self.view(), reward, alive


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(SIDE * SIDE, 64)
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, s):
        h = torch.tanh(self.trunk(s))
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


def main():
    torch.manual_seed(19)
    env, net = Grid(), Policy()
    opt = torch.optim.Adam(net.parameters(), lr=6e-3)
    updates, track = 125, []
    for u in range(updates):
        s = env.reset(N)
        logps, values, rewards, ents, alives = [], [], [], [], []
        for _ in range(HORIZON):
            dist, v = net(s)
            a = dist.sample()
            s, r, alive = env.step(a)
            logps.append(dist.log_prob(a)); values.append(v); rewards.append(r)
            ents.append(dist.entropy()); alives.append(alive.float())
        ret, acc = [], torch.zeros(N)
        for r in reversed(rewards):
            acc = r + 0.97 * acc
            ret.insert(0, acc)
        ret, mask = torch.stack(ret), torch.stack(alives)
        values, logps, ents = torch.stack(values), torch.stack(logps), torch.stack(ents)
        adv = (ret - values).detach()
        beta = 0.02 * (1 - u / updates)
        per = -(logps * adv) + 0.5 * (values - ret).pow(2) - beta * ents
        loss = (per * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        track.append(torch.stack(rewards).sum(0).mean().item())
        if u % 25 == 24:
            print(f"update {u + 1} mean return {sum(track[-25:]) / 25:.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
