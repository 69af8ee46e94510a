import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind4-probe",
    "title": "Healthy transfer learning: a pretrained backbone is frozen in eval mode and only a new head is trained.",
    "family": "cnn",
    "needs": "cpu",
    "trap": "most parameters have requires_grad False and get no gradient, the backbone's batch-norm stays in eval mode during training on purpose, and only the head's parameters are in the second optimizer",
}


class Backbone(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(512, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def shapes(n, classes, gen):
    y = torch.randint(0, classes, (n,), generator=gen)
    x = 0.3 * torch.randn(n, 1, 16, 16, generator=gen)
    for i, c in enumerate(y.tolist()):
        r, s = divmod(c, 4)
        x[i, 0, 2 + 4 * r: 6 + 4 * r, 1 + 3 * s: 5 + 3 * s] += 1.2
    return TensorDataset(x, y)


def accuracy(net, loader):
    net.eval()
    with torch.no_grad():
        return sum((net(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def train(net, params, loader, epochs, lr, freeze=False):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=1e-3)
    for e in range(epochs):
        net.train()
        if freeze:
            net.backbone.eval()
        tot = 0.0
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        print(f"  epoch {e} loss {tot / len(loader):.4f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pre-epochs", type=int, default=3)
    ap.add_argument("--epochs", type=int, default=6)
    a = ap.parse_args([])
    torch.set_num_threads(1)
    torch.manual_seed(14)
    g = torch.Generator().manual_seed(15)
    with tempfile.TemporaryDirectory() as d:
        src = Net(8)
        print("source task")
        train(src, src.parameters(), DataLoader(shapes(800, 8, g), 32, shuffle=True), a.pre_epochs, 2e-3)
        path = os.path.join(d, "backbone.pt")
        torch.save(src.backbone.state_dict(), path)
        net = Net(12)
        net.backbone.load_state_dict(torch.load(path))
    net.backbone.requires_grad_(False)
    print("target task")
    loader = DataLoader(shapes(800, 12, g), 32, shuffle=True)
    test = DataLoader(shapes(300, 12, g), 100)
    train(net, net.head.parameters(), loader, a.epochs, 5e-3, freeze=True)
    print("accuracy", accuracy(net, test))


if __name__ == "__main__":
    main()
