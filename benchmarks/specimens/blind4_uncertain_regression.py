import argparse
import math
import numpy as np
import torch
import torch.nn as nn

TRUTH = {
    "id": "blind4-uncertain_regression",
    "title": "The hand-written decoupled-decay optimizer multiplies the weights by (1 - decay) without the learning rate, a decay hundreds of times too strong, so the weights shrink and the loss stalls.",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class DecoupledAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["step"], s["exp_avg"], s["exp_avg_sq"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["step"] += 1
                s["exp_avg"].lerp_(p.grad, 1 - b1)
                s["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m = s["exp_avg"] / (1 - b1 ** s["step"])
                v = s["exp_avg_sq"] / (1 - b2 ** s["step"])
                p.mul_(1 - g["weight_decay"])
                p.addcdiv_(m, v.sqrt().add_(g["eps"]), value=-g["lr"])


class MeanVarNet(nn.Module):
    def __init__(self, d, w=96):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, w), nn.SiLU(), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, w), nn.SiLU())
        self.mean, self.logvar = nn.Linear(w, 1), nn.Linear(w, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.mean(h).squeeze(-1), self.logvar(h).squeeze(-1).clamp(-6, 4)


def nll(mu, lv, y):
    return (0.5 * (lv + (y - mu) ** 2 / lv.exp())).mean() + 0.5 * math.log(2 * math.pi)


def table(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(n, 6))
    f = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + np.abs(x[:, 3])
    y = f + (0.05 + 0.1 * np.abs(x[:, 4])) * rng.normal(size=n)
    y = (y - 1.0) / 1.2
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch", type=int, default=128)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = table(4000, 0)
    xv, yv = table(800, 1)
    model = MeanVarNet(6)
    mats = [q for q in model.parameters() if q.ndim > 1]
    vecs = [q for q in model.parameters() if q.ndim <= 1]
    opt = DecoupledAdam([{"params": mats, "weight_decay": a.weight_decay}, {"params": vecs}], lr=a.lr)
    g = torch.Generator().manual_seed(0)
    for ep in range(a.epochs):
        tot = 0.0
        for i in torch.randperm(len(x), generator=g).split(a.batch):
            mu, lv = model(x[i])
            loss = nll(mu, lv, y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item() * len(i)
        with torch.no_grad():
            mu, lv = model(xv)
        wn = sum(q.pow(2).sum() for q in mats).sqrt().item()
        print(f"epoch {ep} nll {tot / len(x):.4f} val rmse {(mu - yv).pow(2).mean().sqrt().item():.4f} |W| {wn:.3f}")


if __name__ == "__main__":
    main()
