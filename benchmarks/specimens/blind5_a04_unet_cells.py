"""Cell segmentation with a small U-Net."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-a04-unet-cells",
    "row": None,
    "title": "eight micro-batch losses are accumulated without dividing by eight before each SGD step",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["accumulation-not-normalised"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Cells(Dataset):
    def __init__(self, n, size=32, seed=0):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[:size, :size]
        self.img = np.zeros((n, 1, size, size), np.float32)
        self.mask = np.zeros((n, 1, size, size), np.float32)
        for i in range(n):
            for _ in range(rng.integers(1, 4)):
                cy, cx = rng.uniform(5, size - 5, 2)
                r = rng.uniform(3, 6)
                self.mask[i, 0] = np.maximum(self.mask[i, 0], ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r))
            self.img[i, 0] = self.mask[i, 0] * rng.uniform(0.8, 1.4) + rng.normal(0, 0.5, (size, size))
        self.img = (self.img - self.img.mean()) / self.img.std()

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return torch.from_numpy(self.img[i]), torch.from_numpy(self.mask[i])


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1 = conv(1, c)
        self.d2 = conv(c, 2 * c)
        self.mid = conv(2 * c, 4 * c)
        self.u2 = conv(6 * c, 2 * c)
        self.u1 = conv(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.zeros_(m.bias)
        nn.init.normal_(self.out.weight, 0, 0.05)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        u = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        u = self.u1(torch.cat([F.interpolate(u, scale_factor=2), a], 1))
        return self.out(u)


def dice(logits, mask):
    p = (logits > 0).float()
    return (2 * (p * mask).sum() / (p.sum() + mask.sum()).clamp(min=1)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--micro-batch", type=int, default=4)
    ap.add_argument("--accum", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=5)
    args = ap.parse_args()
    torch.manual_seed(5)

    train = DataLoader(Cells(480), args.micro_batch, shuffle=True)
    val = DataLoader(Cells(96, seed=1), 48)
    model = UNet()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    total = args.epochs * len(train) // args.accum
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)

    for epoch in range(args.epochs):
        model.train()
        seen = 0.0
        for i, (x, m) in enumerate(train):
            loss = F.binary_cross_entropy_with_logits(model(x), m)
            loss.backward()
            seen += loss.item()
            if (i + 1) % args.accum == 0:
                opt.step()
                sched.step()
                opt.zero_grad()
        model.eval()
        with torch.no_grad():
            d = np.mean([dice(model(x), m) for x, m in val])
        print(f"epoch {epoch}: bce {seen / len(train):.4f}  val dice {d:.3f}")


if __name__ == "__main__":
    main()
