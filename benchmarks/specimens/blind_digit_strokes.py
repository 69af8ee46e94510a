"""Stroke images, small residual net, periodic validation."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-digit-strokes",
    "row": None,
    "title": "validation runs under no_grad but without model.eval(): batch statistics and dropout are live and the running stats absorb val data",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["model-left-in-train"],
    "bricks": [],
    "first_step": 39,
    "needs": "cpu",
    "crashes": False,
}

K = 8


def strokes(n, seed, ordered=False):
    g = torch.Generator().manual_seed(seed)
    proto = (torch.rand(K, 1, 14, 14, generator=torch.Generator().manual_seed(31)) > 0.72).float()
    proto = F.avg_pool2d(proto, 3, 1, 1) * 3
    y = torch.randint(0, K, (n,), generator=g)
    if ordered:
        y = y.sort().values
    dy, dx = (torch.randint(-1, 2, (n,), generator=g).tolist() for _ in range(2))
    x = torch.stack([torch.roll(proto[int(c)], (a, b), (1, 2)) for c, a, b in zip(y, dy, dx)])
    x = x + 0.7 * torch.randn(x.shape, generator=g)
    return (x - 0.8) / 0.9, y


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class StrokeNet(nn.Module):
    def __init__(self, width=20, p=0.4):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.block1, self.block2 = ResBlock(width), ResBlock(width)
        self.drop = nn.Dropout(p)
        self.fc = nn.Linear(width * 9, K)

    def forward(self, x):
        h = self.block2(self.block1(self.stem(x)))
        return self.fc(self.drop(F.adaptive_avg_pool2d(h, 3).flatten(1)))


@torch.no_grad()
def validate(model, loader):
    loss = hit = n = 0
    for x, y in loader:
        out = model(x)
        loss += F.cross_entropy(out, y, reduction="sum").item()
        hit += (out.argmax(1) == y).sum().item()
        n += len(y)
    return loss / n, hit / n


def train(args):
    torch.manual_seed(args.seed)
    tl = DataLoader(TensorDataset(*strokes(2000, 1)), batch_size=32, shuffle=True, drop_last=True)
    vl = DataLoader(TensorDataset(*strokes(320, 2, ordered=True)), batch_size=16)
    model = StrokeNet()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total = args.epochs * len(tl)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, total_steps=total)
    model.train()
    step, recent = 0, []
    for _ in range(args.epochs):
        for x, y in tl:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            recent.append(loss.item())
            step += 1
            if step % 40 == 0:
                vl_loss, acc = validate(model, vl)
                print(f"step {step}/{total} train {sum(recent) / len(recent):.4f} val {vl_loss:.4f} acc {acc:.3f}")
                recent = []


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=6)
    train(p.parse_args())
