"""Rare-event detection on tabular transactions with a focal loss."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

TRUTH = {
    "id": "blind-fraud",
    "row": None,
    "title": "focal loss takes log(p) and log(1 - p) of a sigmoid that reaches exactly 1: inf, then NaN",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["log-of-zero"],
    "bricks": [],
    "first_step": 124,
    "needs": "cpu",
    "crashes": False,
}


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=0.5):
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def forward(self, logits, target):
        p = torch.sigmoid(logits)
        pos = -self.alpha * (1 - p) ** self.gamma * target * torch.log(p)
        neg = -(1 - self.alpha) * p**self.gamma * (1 - target) * torch.log(1 - p)
        return (pos + neg).mean()


class FraudNet(nn.Module):
    def __init__(self, n_features, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_features, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def transactions(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    x[:, 0] = torch.exp(0.9 * x[:, 0])
    x[:, 1] = torch.exp(0.9 * x[:, 1])
    score = 1.2 * x[:, 0] + 1.2 * x[:, 1] + x[:, 2] * x[:, 3] - 7.5
    return x, (score > 0).float()


def recall_precision(model, x, y):
    model.eval()
    with torch.no_grad():
        pred = (model(x) > 0).float()
    model.train()
    tp = (pred * y).sum()
    return (tp / y.sum()).item(), (tp / pred.sum().clamp(min=1)).item()


def main():
    torch.manual_seed(9)
    x, y = transactions(8000, 1)
    xt, yt = transactions(2000, 2)
    weights = torch.where(y > 0, 1 / y.sum(), 1 / (1 - y).sum())
    sampler = WeightedRandomSampler(weights, num_samples=6400)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, sampler=sampler)
    model = FraudNet(12)
    criterion = FocalLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(5):
        total = 0.0
        for xb, yb in loader:
            loss = criterion(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        r, p = recall_precision(model, xt, yt)
        print(f"epoch {epoch}: loss {total / len(loader):.5f} recall {r:.3f} precision {p:.3f}")


if __name__ == "__main__":
    main()
