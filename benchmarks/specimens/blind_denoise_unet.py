from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-denoise-unet",
    "row": None,
    "title": "hand-written gradient clipping divides by the sum of squares, the square root is missing",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    lr: float = 0.02
    momentum: float = 0.9
    max_norm: float = 1.0
    epochs: int = 6
    batch: int = 16
    n: int = 768
    size: int = 16


def shapes(n, s):
    g = torch.Generator().manual_seed(0)
    yy, xx = torch.meshgrid(torch.arange(s).float(), torch.arange(s).float(), indexing="ij")
    c = torch.rand(n, 2, generator=g) * s
    r = 2 + 3 * torch.rand(n, generator=g)
    d = ((yy[None] - c[:, 0, None, None]) ** 2 + (xx[None] - c[:, 1, None, None]) ** 2).sqrt()
    clean = torch.sigmoid(2 * (r[:, None, None] - d))[:, None]
    noisy = clean + 0.4 * torch.randn(clean.shape, generator=g)
    return noisy, clean


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d1 = block(1, w)
        self.d2 = block(w, 2 * w)
        self.mid = block(2 * w, 2 * w)
        self.u2 = block(4 * w, w)
        self.u1 = block(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        m = F.interpolate(m, scale_factor=2)
        m = self.u2(torch.cat([m, b], 1))
        m = F.interpolate(m, scale_factor=2)
        m = self.u1(torch.cat([m, a], 1))
        return self.out(m)


@torch.no_grad()
def limit_gradients(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    total = torch.zeros(())
    for g in grads:
        total += g.pow(2).sum()
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(scale)
    return total


def main():
    cfg = Config()
    torch.manual_seed(1)
    noisy, clean = shapes(cfg.n, cfg.size)
    tr = DataLoader(TensorDataset(noisy[:640], clean[:640]), batch_size=cfg.batch, shuffle=True)
    net = SmallUNet()
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    total_steps = cfg.epochs * len(tr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total_steps)
    for ep in range(cfg.epochs):
        net.train()
        acc = 0.0
        for x, y in tr:
            opt.zero_grad(set_to_none=True)
            loss = F.mse_loss(net(x), y, reduction="sum") / x.size(0)
            loss.backward()
            limit_gradients(list(net.parameters()), cfg.max_norm)
            opt.step()
            sched.step()
            acc += loss.item()
        net.eval()
        with torch.no_grad():
            v = F.mse_loss(net(noisy[640:]), clean[640:], reduction="sum") / 128
        print(f"epoch {ep} train {acc / len(tr):.3f} val {v.item():.3f}")


if __name__ == "__main__":
    main()
