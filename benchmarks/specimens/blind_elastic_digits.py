import math
import random
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-elastic-digits",
    "row": None,
    "title": "the augmentation resamples every pixel in pure Python in the training process: the step waits for data most of the time",
    "family": "cnn",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["loader-bound"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

SIZE = 20


def strokes(label, rng):
    img = [[0.0] * SIZE for _ in range(SIZE)]
    cx, cy = SIZE / 2 + rng.uniform(-1, 1), SIZE / 2 + rng.uniform(-1, 1)
    spokes = label + 2
    for k in range(spokes):
        a = 2 * math.pi * k / spokes
        for r in range(1, 8):
            x, y = int(cx + r * math.cos(a)), int(cy + r * math.sin(a))
            if 0 <= x < SIZE and 0 <= y < SIZE:
                img[y][x] = 1.0
    return img


class Elastic:
    """Smooth random displacement with bilinear resampling."""

    def __init__(self, amplitude=1.5, seed=0):
        self.amplitude, self.rng = amplitude, random.Random(seed)

    def __call__(self, img):
        ax, ay = (self.rng.uniform(-1, 1) * self.amplitude for _ in range(2))
        px, py = (self.rng.uniform(0, 6.28) for _ in range(2))
        out = [[0.0] * SIZE for _ in range(SIZE)]
        for y in range(SIZE):
            for x in range(SIZE):
                sx = x + ax * math.sin(2 * math.pi * y / SIZE + px)
                sy = y + ay * math.sin(2 * math.pi * x / SIZE + py)
                x0, y0 = math.floor(sx), math.floor(sy)
                fx, fy = sx - x0, sy - y0
                acc = 0.0
                for dy, wy in ((0, 1 - fy), (1, fy)):
                    for dx, wx in ((0, 1 - fx), (1, fx)):
                        xx, yy = x0 + dx, y0 + dy
                        if 0 <= xx < SIZE and 0 <= yy < SIZE:
                            acc += wy * wx * img[yy][xx]
                out[y][x] = acc
        return out


class Shapes(Dataset):
    def __init__(self, n, seed, transform=None):
        rng = random.Random(seed)
        self.labels = [rng.randrange(5) for _ in range(n)]
        self.images = [strokes(c, rng) for c in self.labels]
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = self.images[i]
        if self.transform is not None:
            img = self.transform(img)
        return (torch.tensor(img).unsqueeze(0) - 0.1) / 0.3, self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(24 * 25, 5)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = DataLoader(Shapes(1000, 1, Elastic()), batch_size=32, shuffle=True, drop_last=True)
    test = DataLoader(Shapes(300, 2), batch_size=100)
    net = Net()
    epochs = 4
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 6e-3, total_steps=epochs * len(train))
    for epoch in range(epochs):
        net.train()
        start, compute = time.perf_counter(), 0.0
        for x, y in train:
            t = time.perf_counter()
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            compute += time.perf_counter() - t
        wall = time.perf_counter() - start
        net.eval()
        with torch.no_grad():
            hits = sum((net(x).argmax(1) == y).sum().item() for x, y in test)
        print(f"epoch {epoch} loss {loss.item():.3f} acc {hits / 300:.3f} wall {wall:.2f}s compute {compute:.2f}s")


if __name__ == "__main__":
    main()
