import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-c03-transfer-head",
    "row": None,
    "title": "classifier head is replaced after the optimizer was built: the optimizer holds the old head, the new one never moves",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-stale-parameters", "optimizer-missing-parameters"],
    "bricks": ["head"],
    "first_step": 100,
    "needs": "cpu",
    "crashes": False,
}

ap = argparse.ArgumentParser()
ap.add_argument("--pretrain-steps", type=int, default=100)
ap.add_argument("--finetune-epochs", type=int, default=6)
ap.add_argument("--batch-size", type=int, default=32)
ap.add_argument("--lr", type=float, default=2e-3)
ap.add_argument("--backbone-lr", type=float, default=1e-4)
ap.add_argument("--seed", type=int, default=0)
args = ap.parse_args()
torch.manual_seed(args.seed)


def gratings(n, classes, phase):
    """Oriented gratings; the class is the orientation."""
    y = torch.randint(0, classes, (n,))
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")
    theta = (y.float() / classes * torch.pi + phase)[:, None, None]
    shift = torch.rand(n, 1, 1) * 6.28
    img = torch.sin(7 * (xx * theta.cos() + yy * theta.sin()) + shift) + 0.5 * torch.randn(n, 20, 20)
    return img.unsqueeze(1), y


class SmallNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.stage1 = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.head = nn.Linear(64, num_classes)

    def features(self, x):
        return self.stage2(self.stage1(self.stem(x))).mean((2, 3))

    def reset_classifier(self, num_classes):
        self.head = nn.Linear(self.head.in_features, num_classes)

    def forward(self, x):
        return self.head(self.features(x))


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hit = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return hit / len(loader.dataset)


def main():
    model = SmallNet(4)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    src = DataLoader(TensorDataset(*gratings(args.pretrain_steps * args.batch_size, 4, 0.0)), args.batch_size, shuffle=True)
    model.train()
    for i, (x, y) in enumerate(src):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"pretrain done after {i + 1} steps, loss {loss.item():.3f}")

    opt = torch.optim.AdamW([
        {"params": model.stage2.parameters(), "lr": args.backbone_lr},
        {"params": model.head.parameters(), "lr": args.lr},
    ], weight_decay=1e-4)
    for m in (model.stem, model.stage1):
        for p in m.parameters():
            p.requires_grad_(False)
    model.reset_classifier(9)

    train = DataLoader(TensorDataset(*gratings(1024, 9, 0.3)), args.batch_size, shuffle=True, drop_last=True)
    test = DataLoader(TensorDataset(*gratings(512, 9, 0.3)), 128)
    for epoch in range(args.finetune_epochs):
        model.train()
        seen = tot = 0
        for x, y in train:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            loss.backward()
            opt.step()
            tot += loss.item() * len(x)
            seen += len(x)
        print(f"epoch {epoch}: loss {tot / seen:.3f}  test acc {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
