"""PPO on a hand-written cart-pole, vectorised over 16 environments."""
import math

import torch
import torch.nn as nn
from torch.distributions import Categorical

TRUTH = {
    "id": "blind5-b31-ppo-pole",
    "title": "PPO on cart-pole: returns rise",
    "family": "mlp",
    "needs": "cpu",
    "trap": "losses are noisy, the value loss grows while the policy improves, entropy falls, several updates on the same batch",
}


class VecCartPole:
    def __init__(self, n, gen, limit=200):
        self.n, self.g, self.limit = n, gen, limit
        self.s = self._fresh(n)
        self.t = torch.zeros(n)

    def _fresh(self, n):
        return torch.rand(n, 4, generator=self.g) * 0.1 - 0.05

    def step(self, a):
        x, v, th, w = self.s.unbind(1)
        f = torch.where(a == 1, 10.0, -10.0)
        c, s = th.cos(), th.sin()
        tmp = (f + 0.05 * w ** 2 * s) / 1.1
        wa = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c ** 2 / 1.1))
        xa = tmp - 0.05 * wa * c / 1.1
        self.s = torch.stack([x + 0.02 * v, v + 0.02 * xa, th + 0.02 * w, w + 0.02 * wa], 1)
        self.t += 1
        fail = (self.s[:, 0].abs() > 2.4) | (self.s[:, 2].abs() > 12 * math.pi / 180)
        done = fail | (self.t >= self.limit)
        lengths = self.t[done].tolist()
        if done.any():
            self.s = torch.where(done[:, None], self._fresh(self.n), self.s)
            self.t = torch.where(done, torch.zeros(self.n), self.t)
        return self.s, torch.ones(self.n), done.float(), lengths


def mlp(out, gain):
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
    for m in net:
        if isinstance(m, nn.Linear):
            nn.init.orthogonal_(m.weight, math.sqrt(2))
            nn.init.zeros_(m.bias)
    nn.init.orthogonal_(net[-1].weight, gain)
    return net


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.v = mlp(2, 0.01), mlp(1, 1.0)

    def forward(self, s):
        return Categorical(logits=self.pi(s)), self.v(s).squeeze(-1)


def main():
    torch.manual_seed(0)
    env = VecCartPole(16, torch.Generator().manual_seed(0))
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=1.5e-3, eps=1e-5)
    updates, T, epochs, mb = 30, 64, 4, 256
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 1 - k / updates)
    gamma, lam = 0.98, 0.95
    s = env.s
    for u in range(updates):
        S, A, LP, R, D, V, lens = [], [], [], [], [], [], []
        for _ in range(T):
            with torch.no_grad():
                pi, v = net(s)
                a = pi.sample()
            S.append(s); A.append(a); LP.append(pi.log_prob(a)); V.append(v)
            s, r, d, ln = env.step(a)
            R.append(r); D.append(d); lens += ln
        with torch.no_grad():
            last = net(s)[1]
        adv, out = torch.zeros(16), []
        for t in reversed(range(T)):
            nv = last if t == T - 1 else V[t + 1]
            delta = R[t] + gamma * nv * (1 - D[t]) - V[t]
            adv = delta + gamma * lam * (1 - D[t]) * adv
            out.append(adv)
        adv = torch.stack(out[::-1])
        ret = (adv + torch.stack(V)).flatten()
        adv = adv.flatten()
        S, A, LP = torch.cat(S), torch.cat(A), torch.cat(LP)
        for _ in range(epochs):
            for idx in torch.randperm(len(S)).split(mb):
                pi, v = net(S[idx])
                ratio = (pi.log_prob(A[idx]) - LP[idx]).exp()
                a_ = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
                pl = -torch.min(ratio * a_, ratio.clamp(0.8, 1.2) * a_).mean()
                vl = (v - ret[idx]).pow(2).mean()
                loss = pl + 0.5 * vl - 0.005 * pi.entropy().mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
        sched.step()
        if lens and u % 3 == 2:
            print(f"update {u + 1} mean length {sum(lens) / len(lens):.1f} policy {pl.item():.3f} value {vl.item():.2f}")


if __name__ == "__main__":
    main()
