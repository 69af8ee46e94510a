# One-step-ahead forecast of an hourly load curve.
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-load-forecast",
    "row": None,
    "title": "prediction (B,1) minus target (B,) broadcasts to (B,B) in the hand-written Huber loss: the model learns the mean",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class LoadCurve(Dataset):
    """Windows over a daily + weekly pattern with autoregressive noise."""

    def __init__(self, hours=4000, window=36, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(hours, dtype=torch.float32)
        phase = 6.28 * torch.rand(2, generator=g)
        s = torch.sin(2 * math.pi * t / 24 + phase[0]) + 0.6 * torch.sin(2 * math.pi * t / 84 + phase[1])
        s = s + 0.15 * torch.randn(hours, generator=g)
        self.series = (s - s.mean()) / s.std()
        self.window = window

    def __len__(self):
        return len(self.series) - self.window

    def __getitem__(self, i):
        return self.series[i : i + self.window].unsqueeze(-1), self.series[i + self.window]


class Forecaster(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, num_layers=1, batch_first=True)
        self.out = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        _, (h, _) = self.rnn(x)
        return self.out(h[-1])


def huber(pred, target, delta=1.0):
    err = pred - target
    a = err.abs()
    return torch.where(a < delta, 0.5 * err**2, delta * (a - 0.5 * delta)).mean()


def train(model, loader, optimizer):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = huber(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def validate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += huber(model(x), y).item()
    return total / len(loader)


def main():
    torch.manual_seed(21)
    train_dl = DataLoader(LoadCurve(seed=1), batch_size=64, shuffle=True)
    val_dl = DataLoader(LoadCurve(hours=700, seed=2), batch_size=64)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    n_epochs = 6
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=n_epochs)
    for epoch in range(n_epochs):
        tr = train(model, train_dl, optimizer)
        va = validate(model, val_dl)
        print(f"epoch {epoch} train {tr:.4f} val {va:.4f} lr {sched.get_last_lr()[0]:.5f}")
        sched.step()


if __name__ == "__main__":
    main()
