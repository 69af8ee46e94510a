import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-glyphs",
    "row": None,
    "title": "backbone is to be unfrozen after the first epoch, but module.requires_grad = True sets a plain attribute: it stays frozen",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["parameters-frozen"],
    "bricks": ["backbone"],
    "first_step": 50,
    "needs": "cpu",
    "crashes": False,
}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 3, padding=1)
        self.c2 = nn.Conv2d(12, 16, 3, padding=1)
        self.c3 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 4, 24)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.c3(x)), 2)
        return F.relu(self.fc(x.flatten(1)))


class GlyphNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(24, n_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def make_glyphs(n, n_classes, seed):
    g = torch.Generator().manual_seed(seed)
    shapes = (torch.rand(n_classes, 6, 6, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    y = torch.randint(0, n_classes, (n,), generator=g)
    x = 0.35 * torch.randn(n, 1, 12, 12, generator=g)
    dx = torch.randint(0, 7, (n, 2), generator=g)
    for k in range(n):
        i, j = dx[k].tolist()
        x[k, 0, i : i + 6, j : j + 6] += shapes[y[k]] * 2 - 1
    return TensorDataset(x, y)


def set_trainable(module, flag):
    if not flag:
        for p in module.parameters():
            p.requires_grad = False
    else:
        module.requires_grad = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=7)
    ap.add_argument("--head-epochs", type=int, default=1)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    torch.manual_seed(0)
    train = DataLoader(make_glyphs(3200, 10, seed=2), batch_size=64, shuffle=True)
    test = DataLoader(make_glyphs(640, 10, seed=3), batch_size=128)
    model = GlyphNet(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    set_trainable(model.backbone, False)
    for epoch in range(args.epochs):
        if epoch == args.head_epochs:
            print("unfreezing the backbone")
            set_trainable(model.backbone, True)
        model.train()
        total = 0.0
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            acc = sum((model(x).argmax(1) == y).sum().item() for x, y in test) / 640
        print(f"epoch {epoch}: loss {total / len(train):.4f} test acc {acc:.3f}")


if __name__ == "__main__":
    main()
