import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader, Sampler

TRUTH = {
    "id": "blind4-blob_detector",
    "title": "Each step takes the first batch of a freshly made iterator whose sampler reseeds itself, so every step trains on the same batch and the network memorises it.",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-repeats"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}


class Blobs(Dataset):
    def __init__(self, n, seed, s=24):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[:s, :s]
        self.img, self.box, self.cls = np.zeros((n, 1, s, s), np.float32), np.zeros((n, 4), np.float32), rng.integers(0, 3, n)
        for i in range(n):
            cx, cy, w, h = *rng.uniform(7, s - 7, 2), *rng.uniform(3, 6, 2)
            u, v = (xx - cx) / w, (yy - cy) / h
            m = [u * u + v * v < 1, np.maximum(abs(u), abs(v)) < 0.9, abs(u) + abs(v) < 1.1][self.cls[i]]
            self.img[i, 0] = m * rng.uniform(0.6, 1.2) + 0.3 * rng.normal(size=(s, s))
            self.box[i] = np.array([cx, cy, w, h]) / s

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return torch.from_numpy(self.img[i]), torch.from_numpy(self.box[i]), int(self.cls[i])


class SeededSampler(Sampler):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        return iter(torch.randperm(self.n, generator=g).tolist())

    def __len__(self):
        return self.n


class Detector(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, w, 3, 2, 1), nn.GroupNorm(4, w), nn.ReLU(), nn.Conv2d(w, 2 * w, 3, 2, 1),
                                      nn.GroupNorm(4, 2 * w), nn.ReLU(), nn.Conv2d(2 * w, 2 * w, 3, 1, 1), nn.ReLU())
        self.neck = nn.Sequential(nn.Flatten(), nn.Linear(2 * w * 36, 96), nn.ReLU())
        self.box_head, self.cls_head = nn.Linear(96, 4), nn.Linear(96, 3)

    def forward(self, x):
        f = self.neck(self.backbone(x))
        return torch.sigmoid(self.box_head(f)), self.cls_head(f)


def objective(box, cls, tb, tc):
    return 20 * F.smooth_l1_loss(box, tb, beta=0.1) + F.cross_entropy(cls, tc)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=160)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, val = Blobs(1500, 0), Blobs(300, 1)
    loader = DataLoader(train, a.batch, sampler=SeededSampler(len(train), 7), drop_last=True)
    xv, bv, cv = map(torch.stack, zip(*[(i, b, torch.tensor(c)) for i, b, c in val]))
    model = Detector()
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-3)
    for it in range(a.iters):
        x, b, c = next(iter(loader))
        box, cls = model(x)
        loss = objective(box, cls, b, c)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 20 == 0 or it == a.iters - 1:
            with torch.no_grad():
                vb, vc = model(xv)
            print(f"it {it} train {loss.item():.4f} val {objective(vb, vc, bv, cv).item():.4f} acc {(vc.argmax(1) == cv).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
