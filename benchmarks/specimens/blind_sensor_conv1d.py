"""Activity recognition from three-axis sensor windows."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-sensor-conv1d",
    "row": 43,
    "title": "the cosine horizon counts samples instead of batches, so lr stays at its peak for the whole run",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 21,
    "needs": "cpu",
    "crashes": False,
}

EPOCHS, BATCH, PEAK, WARMUP = 4, 32, 0.3, 20


def windows(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(6, (n,), generator=g)
    t = torch.linspace(0, 1, 64)
    freq = (2 + y).float()[:, None, None] + 0.25 * torch.randn(n, 3, 1, generator=g)
    ph = 6.28 * torch.rand(n, 3, 1, generator=g)
    x = torch.sin(6.28 * freq * t + ph) + 1.6 * torch.randn(n, 3, 64, generator=g)
    return TensorDataset(x, y)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [3, 16, 32, 32]
        layers = []
        for i in range(3):
            layers += [
                nn.Conv1d(chans[i], chans[i + 1], 7, stride=2, padding=3, bias=False),
                nn.BatchNorm1d(chans[i + 1]),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(32, 6)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))


def lr_lambda(total):
    def f(step):
        if step < WARMUP:
            return (step + 1) / WARMUP
        return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, total - WARMUP)))

    return f


def evaluate(model, loader, crit):
    model.eval()
    tot = hit = n = 0
    with torch.no_grad():
        for x, y in loader:
            o = model(x)
            tot += crit(o, y).item() * len(y)
            hit += (o.argmax(1) == y).sum().item()
            n += len(y)
    return tot / n, hit / n


def main():
    torch.manual_seed(0)
    train_set, val_set = windows(4800, 1), windows(800, 2)
    train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=200)
    net = ConvNet()
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(net.parameters(), lr=PEAK, momentum=0.9, nesterov=True, weight_decay=1e-4)
    total_steps = EPOCHS * len(train_set)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_lambda(total_steps))
    for ep in range(EPOCHS):
        net.train()
        s = 0.0
        for x, y in train_loader:
            opt.zero_grad()
            loss = crit(net(x), y)
            loss.backward()
            opt.step()
            sched.step()
            s += loss.item()
        vl, va = evaluate(net, val_loader, crit)
        print(
            f"epoch {ep:2d} lr {sched.get_last_lr()[0]:.4f} train {s / len(train_loader):.4f} val {vl:.4f} acc {va:.3f}"
        )


if __name__ == "__main__":
    main()
