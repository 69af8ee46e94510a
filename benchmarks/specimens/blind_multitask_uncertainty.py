"""Depth, angle and class from one trunk; task weights learned as log-variances."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-multitask-uncertainty",
    "title": "three heads on a residual MLP with homoscedastic-uncertainty weighting and a Gaussian likelihood",
    "family": "mlp",
    "needs": "cpu",
    "trap": "the total loss goes below zero, scalar log-variance parameters keep drifting, one parameter group without weight decay and ten times the rate",
}


def scenes(n, seed):
    w = torch.Generator().manual_seed(44)
    a, b, c = torch.randn(20, 8, generator=w), torch.randn(8, 2, generator=w), torch.randn(8, 4, generator=w)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    z = torch.tanh(x @ a / 4)
    depth = torch.sin(z @ b[:, 0]) + 0.1 * torch.randn(n, generator=g)
    angle = 0.5 * (z @ b[:, 1]) + 0.02 * torch.randn(n, generator=g)
    kind = (z @ c).argmax(1)
    return TensorDataset(x, depth, angle, kind)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.lin1, self.lin2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.lin2(F.gelu(self.lin1(self.norm(x))))


class MultiTask(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.trunk = nn.Sequential(Residual(d), Residual(d))
        self.depth, self.angle, self.kind = nn.Linear(d, 1), nn.Linear(d, 1), nn.Linear(d, 4)
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.trunk(self.inp(x))
        return self.depth(h).squeeze(-1), self.angle(h).squeeze(-1), self.kind(h)

    def losses(self, x, depth, angle, kind):
        d, a, k = self(x)
        return torch.stack([F.mse_loss(d, depth), F.mse_loss(a, angle), F.cross_entropy(k, kind)])

    def combine(self, parts):
        half = torch.tensor([0.5, 0.5, 1.0])
        return (half * parts * torch.exp(-self.log_var) + 0.5 * self.log_var).sum()


def main():
    torch.manual_seed(15)
    train = DataLoader(scenes(6000, 1), batch_size=75, shuffle=True)
    val = DataLoader(scenes(1000, 2), batch_size=500)
    net = MultiTask()
    rest = [p for n, p in net.named_parameters() if n != "log_var"]
    opt = torch.optim.AdamW(
        [
            {"params": rest, "lr": 2e-3, "weight_decay": 1e-3},
            {"params": [net.log_var], "lr": 2e-2, "weight_decay": 0.0},
        ]
    )
    epochs = 6
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(train))
    for epoch in range(epochs):
        net.train()
        for batch in train:
            parts = net.losses(*batch)
            loss = net.combine(parts)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(rest, 5.0)
            opt.step()
            sched.step()
        net.eval()
        with torch.no_grad():
            v = torch.stack([net.losses(*b) for b in val]).mean(0)
        print(
            f"epoch {epoch} total {loss.item():+.3f} val depth {v[0]:.4f} angle {v[1]:.4f} kind {v[2]:.4f} "
            f"log_var {[round(s, 2) for s in net.log_var.tolist()]}"
        )


if __name__ == "__main__":
    main()
