import torch
from torch import nn
from torch.distributions import Categorical

TRUTH = {"id": "blind6-e36-corridor-actor-critic", "title": "advantage actor-critic on a vectorised grid walk with entropy bonus that is annealed", "family": "mlp", "needs": "cpu",
         "trap": "loss is noisy, changes sign and does not fall; returns detached; value and policy share a trunk; data correlated in time"}

N, SIZE, HORIZON = 32, 7, 20


class Walk:
    """Reach the goal cell; reward 1 at the goal, a small cost for every move."""

    def __init__(self):
        self.pos = torch.randint(0, SIZE, (N, 2))
        self.goal = torch.randint(0, SIZE, (N, 2))
        self.age = torch.zeros(N, dtype=torch.long)
        self.moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def obs(self):
        return torch.cat([self.pos, self.goal, self.goal - self.pos], 1).float() / SIZE

    def step(self, a):
        self.pos = (self.pos + self.moves[a]).clamp(0, SIZE - 1)
        self.age += 1
        won = (self.pos == self.goal).all(1)
        done = won | (self.age >= HORIZON)
        reward = won.float() - 0.04
        k = int(done.sum())
        if k:
            self.pos[done] = torch.randint(0, SIZE, (k, 2))
            self.goal[done] = torch.randint(0, SIZE, (k, 2))
            self.age[done] = 0
        return reward, done.float(), won


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 4), nn.Linear(64, 1)
        nn.init.orthogonal_(self.pi.weight, 0.01)

    def forward(self, o):
        h = self.trunk(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def main(updates=350, rollout=10, gamma=0.95):
    torch.manual_seed(44)
    env, agent = Walk(), Agent()
    opt = torch.optim.RMSprop(agent.parameters(), lr=2e-3, alpha=0.99, eps=1e-5)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, updates)
    wins = ends = 0.0
    for u in range(updates):
        logp, val, ent, rew, don = [], [], [], [], []
        for _ in range(rollout):
            d, v = agent(env.obs())
            a = d.sample()
            r, done, won = env.step(a)
            logp.append(d.log_prob(a)); val.append(v); ent.append(d.entropy()); rew.append(r); don.append(done)
            wins += won.sum().item()
            ends += done.sum().item()
        with torch.no_grad():
            ret = agent(env.obs())[1]
            rets = []
            for r, d in zip(reversed(rew), reversed(don)):
                ret = r + gamma * ret * (1 - d)
                rets.append(ret)
            rets = torch.stack(rets[::-1])
        val, logp, ent = torch.stack(val), torch.stack(logp), torch.stack(ent)
        adv = rets - val.detach()
        beta = 0.02 * (1 - u / updates)
        loss = -(logp * adv).mean() + 0.5 * (rets - val).square().mean() - beta * ent.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        opt.step()
        sched.step()
        if u % 35 == 34:
            print(f"update {u + 1} loss {loss.item():+.3f} entropy {ent.mean().item():.2f} success {wins / max(1, ends):.2f}")
            wins = ends = 0.0


if __name__ == "__main__":
    main()
