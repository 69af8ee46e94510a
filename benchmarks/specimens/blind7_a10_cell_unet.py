"""Cell segmentation with a two-level U-Net and on-the-fly illumination augmentation."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind7-a10-cell-unet",
    "row": None,
    "title": "the dataset computes the illumination field of every image patch by patch in Python loops in the main process; the model waits for data",
    "family": "cnn",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["loader-bound"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SIZE = 32


class Cells(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.cx = torch.rand(n, 3, generator=g) * SIZE
        self.cy = torch.rand(n, 3, generator=g) * SIZE
        self.r = 3 + 4 * torch.rand(n, 3, generator=g)
        self.yy, self.xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")

    def __len__(self):
        return len(self.cx)

    def illumination(self):
        field = torch.randn(SIZE + 4, SIZE + 4)
        out = torch.zeros(SIZE, SIZE)
        for i in range(SIZE):
            for j in range(0, SIZE, 2):
                out[i, j:j + 2] = field[i:i + 5, j:j + 6].unfold(1, 5, 1).mean(dim=(0, 2))
        return out

    def __getitem__(self, k):
        mask = torch.zeros(SIZE, SIZE)
        for x, y, r in zip(self.cx[k], self.cy[k], self.r[k]):
            mask = torch.maximum(mask, ((self.xx - x) ** 2 + (self.yy - y) ** 2 < r * r).float())
        image = 0.8 * mask + 0.8 * self.illumination() + 0.3 * torch.randn(SIZE, SIZE)
        return image[None], mask[None]


def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
                         nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.d1, self.d2, self.mid = double(1, w), double(w, 2 * w), double(2 * w, 4 * w)
        self.u2, self.u1 = double(6 * w, 2 * w), double(3 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.u1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.out(a)


def dice(logits, mask):
    p = logits.sigmoid()
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


def main():
    torch.manual_seed(6)
    loader = DataLoader(Cells(6 * 32, 0), batch_size=6, shuffle=True, num_workers=0)
    net = UNet()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for epoch in range(2):
        t0, total = time.time(), 0.0
        for x, m in loader:
            out = net(x)
            loss = F.binary_cross_entropy_with_logits(out, m) + dice(out, m)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} in {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
