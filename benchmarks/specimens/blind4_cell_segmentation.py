import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset, DataLoader

TRUTH = {
    "id": "blind4-cell_segmentation",
    "title": "Validation puts the network in eval mode and the epoch loop never puts it back, so from the second epoch on batch norm and dropout are off while training.",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 20,
    "needs": "cpu",
    "crashes": False,
}


def cells(n, seed, s=24):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:s, :s]
    img, mask = np.zeros((n, 1, s, s), np.float32), np.zeros((n, 1, s, s), np.float32)
    for i in range(n):
        for _ in range(rng.integers(1, 4)):
            cx, cy = rng.uniform(3, s - 3, 2)
            a, b = rng.uniform(2, 5, 2)
            inside = ((xx - cx) / a) ** 2 + ((yy - cy) / b) ** 2 < 1
            mask[i, 0] = np.maximum(mask[i, 0], inside)
        img[i, 0] = mask[i, 0] * rng.uniform(0.5, 1.2) + 0.35 * rng.normal(size=(s, s)) + rng.uniform(-0.3, 0.3)
    return TensorDataset(torch.from_numpy(img), torch.from_numpy(mask))


class DoubleConv(nn.Sequential):
    def __init__(self, i, o, p=0.0):
        super().__init__(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Dropout2d(p))


class SmallUNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d1, self.d2 = DoubleConv(1, w), DoubleConv(w, 2 * w)
        self.mid = DoubleConv(2 * w, 4 * w, 0.1)
        self.up2, self.u2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), DoubleConv(4 * w, 2 * w)
        self.up1, self.u1 = nn.ConvTranspose2d(2 * w, w, 2, 2), DoubleConv(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([self.up2(c), b], 1))
        a = self.u1(torch.cat([self.up1(b), a], 1))
        return self.out(a)


def dice_bce(logits, m):
    p = torch.sigmoid(logits)
    inter = (p * m).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (p.sum((1, 2, 3)) + m.sum((1, 2, 3)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(logits, m)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    i = u = tot = 0.0
    for x, m in loader:
        out = model(x)
        tot += dice_bce(out, m).item()
        pr = out > 0
        i += (pr & (m > 0)).sum().item()
        u += (pr | (m > 0)).sum().item()
    return tot / len(loader), i / u


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tr = DataLoader(cells(320, 0), a.batch, shuffle=True, generator=torch.Generator().manual_seed(0))
    va = DataLoader(cells(64, 1), 32)
    model = SmallUNet()
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    best, patience = 1e9, 0
    model.train()
    for ep in range(a.epochs):
        run = 0.0
        for x, m in tr:
            loss = dice_bce(model(x), m)
            opt.zero_grad()
            loss.backward()
            opt.step()
            run += loss.item()
        vl, iou = validate(model, va)
        patience = 0 if vl < best else patience + 1
        best = min(best, vl)
        print(f"epoch {ep} train {run / len(tr):.4f} val {vl:.4f} iou {iou:.3f}")
        if patience >= 4:
            break


if __name__ == "__main__":
    main()
