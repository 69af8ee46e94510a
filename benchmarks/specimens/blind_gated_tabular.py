"""Tabular regression with a stack of gated feed-forward blocks."""

import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

TRUTH = {
    "id": "blind-gated-tabular",
    "row": 4,
    "title": "the hand-written backward of the gated unit returns no gradient for the up projection",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["no-gradient-path"],
    "bricks": ["blocks.0.up", "blocks.1.up", "blocks.2.up"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class SwiGLUFn(torch.autograd.Function):
    """silu(gate) * up without keeping silu(gate) alive."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        d_silu = s * (1 + gate * (1 - s))
        return grad * up * d_silu, None


class GatedBlock(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(SwiGLUFn.apply(self.gate(h), self.up(h)))


class TabNet(nn.Module):
    def __init__(self, n_features, dim=24, hidden=16, depth=3):
        super().__init__()
        self.inp = nn.Linear(n_features, dim)
        self.blocks = nn.ModuleList([GatedBlock(dim, hidden) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = b(x)
        return self.out(self.norm(x)).squeeze(-1)


def make_data(n=6000, d=12):
    g = torch.Generator().manual_seed(4)
    x = torch.randn(n, d, generator=g)
    y = x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3] - x[:, 4] * x[:, 5] + 0.5 * torch.sin(2 * x[:, 6])
    y = y + 0.05 * torch.randn(n, generator=g)
    return TensorDataset(x, (y - y.mean()) / y.std())


def main():
    torch.manual_seed(0)
    train, val = random_split(make_data(), [5000, 1000])
    loader = DataLoader(train, batch_size=100, shuffle=True)
    val_loader = DataLoader(val, batch_size=500)
    model = TabNet(12)
    epochs = 10
    total = epochs * len(loader)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 30) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / total)))
    )
    for epoch in range(epochs):
        model.train()
        run = 0.0
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            run += loss.item()
        model.eval()
        with torch.no_grad():
            v = sum(F.mse_loss(model(x), y).item() for x, y in val_loader) / len(val_loader)
        print(f"epoch {epoch} train {run / len(loader):.4f} val {v:.4f}")


if __name__ == "__main__":
    main()
