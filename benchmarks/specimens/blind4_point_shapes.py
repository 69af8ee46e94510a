import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-point_shapes",
    "title": "The classifier returns softmax probabilities, and the label-smoothed cross-entropy takes a log-softmax of them once more, so the loss floors high.",
    "family": "other",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["double-softmax", "loss-input-mismatch"],
    "bricks": ["classifier"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def cloud(kind, n, rng):
    u, v = rng.uniform(0, 2 * np.pi, n), rng.uniform(-1, 1, n)
    if kind == 0:
        s = np.sqrt(1 - v * v)
        p = np.stack([s * np.cos(u), s * np.sin(u), v], 1)
    elif kind == 1:
        p = np.stack([np.cos(u), np.sin(u), v], 1)
    elif kind == 2:
        p = np.stack([(1 - v) / 2 * np.cos(u), (1 - v) / 2 * np.sin(u), v], 1)
    elif kind == 3:
        p = rng.uniform(-1, 1, (n, 3))
        ax = rng.integers(0, 3, n)
        p[np.arange(n), ax] = np.sign(p[np.arange(n), ax])
    elif kind == 4:
        w = v * np.pi
        p = np.stack([(1 + 0.35 * np.cos(w)) * np.cos(u), (1 + 0.35 * np.cos(w)) * np.sin(u), 0.35 * np.sin(w)], 1)
    elif kind == 5:
        p = np.stack([v, rng.uniform(-1, 1, n), 0.05 * rng.normal(size=n)], 1)
    elif kind == 6:
        p = np.stack([np.cos(u), np.sin(u), u / np.pi - 1], 1)
    else:
        p = np.stack([v, 0.05 * rng.normal(size=n), 0.05 * rng.normal(size=n)], 1)
    th = rng.uniform(0, 2 * np.pi)
    rot = np.array([[np.cos(th), -np.sin(th), 0], [np.sin(th), np.cos(th), 0], [0, 0, 1]])
    return (p @ rot.T) * rng.uniform(0.8, 1.2) + 0.03 * rng.normal(size=(n, 3))


def build(n, points, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 8, n)
    x = np.stack([cloud(k, points, rng) for k in y]).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


class SharedMLP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in dims[1:])

    def forward(self, x):
        for l, n in zip(self.layers, self.norms):
            x = F.relu(n(l(x)))
        return x


class PointNetLite(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.local = SharedMLP([3, 48, 96])
        self.fuse = SharedMLP([192, 96])
        self.classifier = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, classes), nn.Softmax(dim=-1))

    def forward(self, p):
        f = self.local(p)
        g = torch.cat([f.max(1).values, f.mean(1)], -1)
        return self.classifier(self.fuse(g))


class SmoothedCE(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, scores, y):
        lp = F.log_softmax(scores, -1)
        nll = -lp.gather(1, y[:, None]).squeeze(1)
        return ((1 - self.eps) * nll - self.eps * lp.mean(-1)).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--points", type=int, default=64)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    x, y = build(1200, a.points, 0)
    xv, yv = build(300, a.points, 1)
    model, crit = PointNetLite(), SmoothedCE(0.05)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-3)
    g = torch.Generator().manual_seed(0)
    for ep in range(a.epochs):
        model.train()
        tot = 0.0
        for i in torch.randperm(len(x), generator=g).split(a.batch):
            loss = crit(model(x[i]), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item() * len(i)
        model.eval()
        with torch.no_grad():
            out = model(xv)
            print(f"epoch {ep} train {tot / len(x):.4f} val {crit(out, yv).item():.4f} acc {(out.argmax(1) == yv).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
