#!/usr/bin/env python
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b07-shape-cnn",
    "row": None,
    "title": "He initialisation takes shape[1] as fan-in and forgets the 5x5 kernel area: every conv starts 5 times too large",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["bad-initialisation"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def draw(n, size, gen):
    """disc, ring, cross, bar, checker on a noisy background"""
    lin = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(lin, lin, indexing="ij")
    cx, cy = (torch.rand(n, 1, 1, generator=gen) - .5, torch.rand(n, 1, 1, generator=gen) - .5)
    s = 0.3 + 0.25 * torch.rand(n, 1, 1, generator=gen)
    dx, dy = xx - cx, yy - cy
    r = (dx ** 2 + dy ** 2).sqrt()
    shapes = torch.stack([
        (r < s).float(),
        ((r < s) & (r > 0.55 * s)).float(),
        (((dx.abs() < 0.12) | (dy.abs() < 0.12)) & (r < s)).float(),
        ((dy.abs() < 0.15) & (dx.abs() < s)).float(),
        (((dx * 8).floor() + (dy * 8).floor()) % 2 * (r < s)).float(),
    ], 1)
    y = torch.randint(0, 5, (n,), generator=gen)
    x = shapes[torch.arange(n), y] + 0.2 * torch.randn(n, size, size, generator=gen)
    x = (x - x.mean()) / x.std()
    return x.unsqueeze(1), y


class ShapeNet(nn.Module):
    def __init__(self, widths=(12, 16, 24, 24, 32), classes=5):
        super().__init__()
        layers, c = [], 1
        for i, w in enumerate(widths):
            layers += [nn.Conv2d(c, w, 5, padding=2, stride=2 if i in (1, 3) else 1), nn.ReLU(inplace=True)]
            c = w
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(c, classes)
        self.reset_parameters()

    def reset_parameters(self):
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                std = math.sqrt(2.0 / m.weight.shape[1])
                nn.init.normal_(m.weight, 0.0, std)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--size", type=int, default=16)
    args = p.parse_args()
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(9)
    xv, yv = draw(400, args.size, gen)
    net = ShapeNet()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=args.steps)
    for step in range(args.steps):
        x, y = draw(args.batch, args.size, gen)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 30 == 0 or step == args.steps - 1:
            net.eval()
            with torch.no_grad():
                acc = (net(xv).argmax(1) == yv).float().mean()
            net.train()
            print(f"{step:4d} loss {loss.item():10.3f} val acc {acc:.3f}")


if __name__ == "__main__":
    main()
