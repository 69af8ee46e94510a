"""Solar output regression with snapshot ensembling (cosine restarts)."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-b33-warm-restarts",
    "title": "residual MLP regression with cosine warm restarts and snapshot ensemble; the last cycle ends with the run",
    "family": "mlp",
    "needs": "cpu",
    "trap": "learning rate jumps back to its peak at epochs 2 and 6, the loss rises after each restart",
}


class ResMLP(nn.Module):
    def __init__(self, d_in, d=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(d_in, d)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 1))

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = x + b(x)
        return self.out(x).squeeze(-1)


def table(n, g):
    x = torch.randn(n, 10, generator=g)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs() + 0.3 * x[:, 4]
    return x, (y - 0.4) / 1.3 + 0.05 * torch.randn(n, generator=g)


def main():
    torch.manual_seed(8)
    g = torch.Generator().manual_seed(8)
    xt, yt = table(2048, g)
    xv, yv = table(512, g)
    dl = DataLoader(TensorDataset(xt, yt), 64, shuffle=True)
    n = len(dl)
    model = ResMLP(10)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2 * n, T_mult=2, eta_min=1e-5)
    ends, snaps = {2, 6, 14}, []
    for epoch in range(1, 15):
        model.train()
        tot = 0.0
        for x, y in dl:
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            sched.step()
            tot += loss.item()
        model.eval()
        with torch.no_grad():
            v = F.mse_loss(model(xv), yv).item()
        if epoch in ends:
            snaps.append(copy.deepcopy(model))
        print(f"epoch {epoch} train {tot / n:.4f} val {v:.4f}" + ("  snapshot" if epoch in ends else ""))
    with torch.no_grad():
        ens = torch.stack([m(xv) for m in snaps[-2:]]).mean(0)
    print("ensemble val", round(F.mse_loss(ens, yv).item(), 4))


if __name__ == "__main__":
    main()
