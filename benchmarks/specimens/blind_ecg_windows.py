import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-ecg-windows",
    "row": None,
    "title": "corrupt windows are dropped from the signals only and the labels merely cut to length, so labels slide against samples",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

N_CLASSES = 5


def record_session(n, seed):
    """Windows of 64 samples; the beat shape gives the class. A few windows have lead-off artefacts."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, N_CLASSES, (n,), generator=g)
    t = torch.linspace(0, 1, 64)
    shift = 0.2 * torch.rand(n, 1, generator=g)
    freq = 2.0 + 1.5 * y[:, None].float()
    x = torch.sin(6.283 * freq * (t + shift)) * torch.exp(-6 * (t - 0.5) ** 2)
    x = x + 0.3 * torch.randn(n, 64, generator=g)
    bad = torch.rand(n, generator=g) < 0.02
    x[bad] = x[bad] + 40.0
    return x.unsqueeze(1), y


def load_split(n, seed):
    x, y = record_session(n, seed)
    ok = x.abs().amax(dim=(1, 2)) < 10
    x = x[ok]
    y = y[: len(x)]
    x = (x - x.mean()) / x.std()
    return x, y


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 16, 7, stride=2, padding=3),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, stride=2, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 48, 3, stride=2, padding=1),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.fc = nn.Linear(48, N_CLASSES)

    def forward(self, x):
        return self.fc(self.features(x))


def iterate(x, y, bs, shuffle):
    order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
    for i in range(0, len(x) - bs + 1, bs):
        j = order[i : i + bs]
        yield x[j], y[j]


def main(args):
    torch.manual_seed(args.seed)
    xtr, ytr = load_split(9000, 10)
    xva, yva = load_split(1000, 11)
    net = BeatNet()
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    step = 0
    for epoch in range(args.epochs):
        net.train()
        for x, y in iterate(xtr, ytr, args.batch, True):
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 30 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
        net.eval()
        with torch.no_grad():
            acc = torch.cat([(net(x).argmax(1) == y).float() for x, y in iterate(xva, yva, 100, False)]).mean()
        print(f"epoch {epoch}: val acc {acc:.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
