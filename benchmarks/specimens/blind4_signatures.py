import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-signatures",
    "title": "The Euclidean distance of a pair is a bare sqrt, and a positive pair sometimes is the same image twice, so the backward of sqrt(0) gives NaN gradients.",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["invalid-op", "division-by-zero"],
    "bricks": [],
    "first_step": 37,
    "needs": "cpu",
    "crashes": False,
}


class PairSampler:
    def __init__(self, writers=6, per_writer=300, seed=4):
        r = np.random.default_rng(seed)
        proto = r.normal(size=(writers, 1, 20, 20))
        k = np.ones((3, 3)) / 9
        proto = F.conv2d(torch.tensor(proto).float(), torch.tensor(k).float()[None, None], padding=1) * 3
        noise = torch.tensor(r.normal(size=(writers, per_writer, 1, 20, 20))).float()
        self.img = proto[:, None] + 0.8 * noise
        self.r = r
        self.w, self.n = writers, per_writer

    def batch(self, size):
        a, b, t = [], [], []
        for _ in range(size):
            i = self.r.integers(self.w)
            same = self.r.random() < 0.5
            j = i if same else (i + self.r.integers(1, self.w)) % self.w
            a.append(self.img[i, self.r.integers(self.n)])
            b.append(self.img[j, self.r.integers(self.n)])
            t.append(float(same))
        return torch.stack(a), torch.stack(b), torch.tensor(t)


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        )
        self.fc = nn.Linear(32 * 25, dim)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, a, b):
        za, zb = self.encoder(a), self.encoder(b)
        return torch.sqrt(((za - zb) ** 2).sum(dim=1))


def contrastive(d, same, margin=2.0):
    return (same * d.pow(2) + (1 - same) * F.relu(margin - d).pow(2)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=300)
    ap.add_argument("--bs", type=int, default=8)
    ap.add_argument("--lr", type=float, default=5e-4)
    o = ap.parse_args([])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = PairSampler()
    net = Siamese()
    opt = torch.optim.Adam(net.parameters(), lr=o.lr)
    sch = torch.optim.lr_scheduler.StepLR(opt, 120, gamma=0.5)
    run = 0.0
    for k in range(o.iters):
        a, b, t = data.batch(o.bs)
        d = net(a, b)
        loss = contrastive(d, t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sch.step()
        run = loss.item() if k == 0 else 0.9 * run + 0.1 * loss.item()
        if k % 20 == 0:
            acc = ((d < 1.0).float() == t).float().mean().item()
            print(f"[{k}] loss {run:.4f} acc {acc:.2f}")


if __name__ == "__main__":
    main()
