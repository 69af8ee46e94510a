"""Human activity recognition from 3-axis accelerometer windows."""
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-b08-har-windows",
    "row": None,
    "title": "clipped recordings are removed from the windows but not from the labels (labels are just cut to length), so labels belong to other windows",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

ACTIVITIES = ["walk", "run", "stairs", "cycle", "sit", "stand"]
FREQ = [1.8, 2.9, 1.5, 1.1, 0.05, 0.05]
AMP = [(.5, .3, .9), (1.0, .6, 1.6), (.6, .7, 1.0), (.9, .3, .3), (.05, .05, .05), (.05, .05, .05)]
GRAV = [(0, 0, 1), (0, .1, 1), (.2, 0, .9), (.5, 0, .8), (.9, 0, .3), (0, 0, 1)]


def record(n, rng):
    t = np.arange(80) / 20.0
    labels = rng.integers(0, 6, n)
    out = np.empty((n, 3, 80), np.float32)
    for k, c in enumerate(labels):
        f = FREQ[c] * rng.uniform(.9, 1.1)
        for ax in range(3):
            ph = rng.uniform(0, 2 * np.pi)
            out[k, ax] = GRAV[c][ax] + AMP[c][ax] * np.sin(2 * np.pi * f * t + ph) + 0.12 * rng.standard_normal(80)
        if rng.random() < 0.06:
            out[k, rng.integers(0, 3), rng.integers(0, 70):] = 8.0
    return out, labels


def clean(windows, labels):
    saturated = (np.abs(windows) > 6.0).any(axis=(1, 2))
    windows = windows[~saturated]
    labels = labels[:len(windows)]
    return windows, labels


class WindowDataset(Dataset):
    def __init__(self, windows, labels, stats=None):
        self.stats = stats or (windows.mean((0, 2), keepdims=True), windows.std((0, 2), keepdims=True))
        self.x = torch.from_numpy((windows - self.stats[0]) / self.stats[1])
        self.y = torch.from_numpy(labels).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def conv_bn(i, o, k, s):
    return nn.Sequential(nn.Conv1d(i, o, k, s, k // 2, bias=False), nn.BatchNorm1d(o), nn.ReLU())


class HARNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv_bn(3, 24, 7, 2), conv_bn(24, 32, 5, 2), conv_bn(32, 48, 3, 2))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(48, len(ACTIVITIES)))

    def forward(self, x):
        return self.head(self.body(x).amax(-1))


@torch.no_grad()
def score(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    train_ds = WindowDataset(*clean(*record(2600, rng)))
    val_ds = WindowDataset(*clean(*record(500, rng)), stats=train_ds.stats)
    train_dl = DataLoader(train_ds, batch_size=64, shuffle=True)
    val_dl = DataLoader(val_ds, batch_size=256)
    model = HARNet()
    opt = optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    crit = nn.CrossEntropyLoss()
    for epoch in range(7):
        model.train()
        run = 0.0
        for x, y in train_dl:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            run += loss.item() * len(y)
        print(f"epoch {epoch}: loss {run / len(train_ds):.4f} val acc {score(model, val_dl):.3f}")
