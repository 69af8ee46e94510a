"""Inverse-dynamics style regression for a two-joint arm."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-robot-arm",
    "row": None,
    "title": "the activation is created but not called in forward: four stacked linear layers cannot fit the non-linear torques, loss plateaus",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["underfitting", "plateau"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def arm_states(n, seed):
    g = torch.Generator().manual_seed(seed)
    q = (torch.rand(n, 2, generator=g) - 0.5) * 3.4
    dq = torch.randn(n, 2, generator=g)
    ddq = torch.randn(n, 2, generator=g)
    c2, s2 = q[:, 1].cos(), q[:, 1].sin()
    t1 = (
        (2 + 1.5 * c2) * ddq[:, 0]
        + (0.6 + 0.7 * c2) * ddq[:, 1]
        - 1.5 * s2 * dq[:, 1] * (2 * dq[:, 0] + dq[:, 1])
        + 4 * q[:, 0].cos()
        + 2 * (q[:, 0] + q[:, 1]).cos()
    )
    t2 = (0.6 + 0.7 * c2) * ddq[:, 0] + 0.6 * ddq[:, 1] + 0.7 * s2 * dq[:, 0] ** 2 + 2 * (q[:, 0] + q[:, 1]).cos()
    x = torch.cat([q, dq, ddq], 1)
    y = torch.stack([t1, t2], 1)
    return x, y


class TorqueNet(nn.Module):
    def __init__(self, d_in=6, width=96, depth=4, d_out=2):
        super().__init__()
        sizes = [d_in] + [width] * (depth - 1) + [d_out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.act = nn.SiLU()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--bs", type=int, default=100)
    a = ap.parse_args()
    torch.manual_seed(12)
    xtr, ytr = arm_states(8000, 1)
    xva, yva = arm_states(1000, 2)
    xm, xs, ym, ys = xtr.mean(0), xtr.std(0), ytr.mean(0), ytr.std(0)
    norm = lambda x, y: TensorDataset((x - xm) / xs, (y - ym) / ys)
    train = DataLoader(norm(xtr, ytr), batch_size=a.bs, shuffle=True)
    valid = DataLoader(norm(xva, yva), batch_size=500)
    net = TorqueNet()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(train), eta_min=1e-5)
    for ep in range(a.epochs):
        net.train()
        tot = 0.0
        for x, y in train:
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            tot += loss.item()
        net.eval()
        with torch.no_grad():
            va = sum(nn.functional.mse_loss(net(x), y).item() for x, y in valid) / len(valid)
        print(f"epoch {ep} train {tot / len(train):.4f} valid {va:.4f}")


if __name__ == "__main__":
    main()
