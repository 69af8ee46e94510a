"""Segmentation of small ellipses with a U-Net and soft Dice loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-unet-dice",
    "title": "U-Net, soft Dice loss on a rare foreground",
    "family": "cnn",
    "needs": "cpu",
    "trap": "sigmoid before the loss, loss bounded in 0..1, 95 % background, small gradients",
}


class Cells(Dataset):
    def __init__(self, n, seed, size=24):
        g = torch.Generator().manual_seed(seed)
        ax = torch.arange(size).float()
        yy, xx = torch.meshgrid(ax, ax, indexing="ij")
        mask = torch.zeros(n, size, size)
        for _ in range(2):
            c = 4 + (size - 8) * torch.rand(n, 2, generator=g)
            r = 1.8 + 1.5 * torch.rand(n, 2, generator=g)
            d = ((yy - c[:, 0, None, None]) / r[:, 0, None, None]) ** 2 + (
                (xx - c[:, 1, None, None]) / r[:, 1, None, None]
            ) ** 2
            mask = torch.maximum(mask, (d < 1).float())
        img = mask * 1.5 + 0.6 * torch.randn(n, size, size, generator=g)
        self.x = ((img - img.mean()) / img.std()).unsqueeze(1)
        self.y = mask.unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.GroupNorm(4, o),
        nn.SiLU(),
        nn.Conv2d(o, o, 3, padding=1),
        nn.GroupNorm(4, o),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self, ch=8):
        super().__init__()
        self.d1, self.d2, self.mid = double(1, ch), double(ch, 2 * ch), double(2 * ch, 4 * ch)
        self.up2 = nn.ConvTranspose2d(4 * ch, 2 * ch, 2, stride=2)
        self.u2 = double(4 * ch, 2 * ch)
        self.up1 = nn.ConvTranspose2d(2 * ch, ch, 2, stride=2)
        self.u1 = double(2 * ch, ch)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([self.up2(c), b], 1))
        a = self.u1(torch.cat([self.up1(b), a], 1))
        return torch.sigmoid(self.out(a))


def dice_loss(p, t, eps=1.0):
    inter = (p * t).sum((1, 2, 3))
    return (1 - (2 * inter + eps) / (p.sum((1, 2, 3)) + t.sum((1, 2, 3)) + eps)).mean()


def main():
    torch.manual_seed(0)
    loader = DataLoader(Cells(960, 0), batch_size=32, shuffle=True)
    val = DataLoader(Cells(128, 1), batch_size=64)
    net = UNet()
    epochs = 5
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=epochs * len(loader), power=0.9)
    for ep in range(epochs):
        net.train()
        s = 0.0
        for x, y in loader:
            loss = dice_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            s += loss.item()
        net.eval()
        with torch.no_grad():
            v = sum(dice_loss(net(x), y).item() for x, y in val) / len(val)
        print(f"epoch {ep} dice loss {s / len(loader):.4f} val {v:.4f}")


main()
