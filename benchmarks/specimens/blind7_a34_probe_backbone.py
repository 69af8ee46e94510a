"""Transfer: a convolutional backbone trained on coarse labels is frozen and a head is trained for fine labels."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {"id": "blind7-a34-probe-backbone", "title": "healthy transfer with a frozen backbone kept in eval mode while the head trains", "family": "cnn",
         "needs": "cpu", "trap": "most parameters have no gradient and never move in phase two; batch norm is in eval mode during backward on purpose"}


@dataclass
class Config:
    pre_epochs: int = 2
    head_epochs: int = 3
    batch: int = 64
    lr: float = 2e-3
    head_lr: float = 5e-3


PROTO = torch.randn(12, 3, 12, 12, generator=torch.Generator().manual_seed(123))


def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    fine = torch.randint(0, 12, (n,), generator=g)
    return 0.22 * PROTO[fine] + torch.randn(n, 3, 12, 12, generator=g), fine, fine // 2


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.c2, self.b2 = nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(x))).flatten(1)


class Net(nn.Module):
    def __init__(self, backbone, classes, frozen):
        super().__init__()
        self.backbone, self.frozen = backbone, frozen
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(48 * 36, classes))
        if frozen:
            self.backbone.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(net, loader, valid, epochs, lr, tag):
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader))
    for e in range(epochs):
        net.train()
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        net.eval()
        with torch.no_grad():
            acc = (net(valid[0]).argmax(1) == valid[1]).float().mean().item()
        print(f"{tag} epoch {e} loss {total / len(loader):.4f} acc {acc:.3f}")


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(5)
    x, fine, coarse = images(2400, 0)
    xv, fv, cv = images(500, 1)
    backbone = Backbone()
    fit(Net(backbone, 6, False), DataLoader(TensorDataset(x, coarse), cfg.batch, shuffle=True), (xv, cv), cfg.pre_epochs, cfg.lr, "coarse")
    fit(Net(backbone, 12, True), DataLoader(TensorDataset(x, fine), cfg.batch, shuffle=True), (xv, fv), cfg.head_epochs, cfg.head_lr, "fine")
