"""Fraud scoring on transaction records (numeric + categorical columns)."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind5-a11-fraud-tabular",
    "row": None,
    "title": "np.log of the amount column is -inf for the few zero-amount rows; the first batch that draws one turns the net to NaN",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 9,
    "needs": "cpu",
    "crashes": False,
}

np.seterr(divide="ignore")


def load_records(n, seed):
    rng = np.random.default_rng(seed)
    amount = np.round(np.exp(rng.normal(3.5, 1.2, n)), 2)
    amount[rng.choice(n, 4, replace=False)] = 0.0
    age_days = rng.integers(1, 3000, n)
    hour = rng.integers(0, 24, n)
    merchant = rng.integers(0, 40, n)
    risk = np.random.default_rng(1).normal(0, 1, 40)
    z = 0.9 * (np.log(amount + 1) - 3.5) - 0.0006 * (age_days - 1500) + 1.2 * risk[merchant] + 0.8 * ((hour < 6) * 1.0) - 0.8
    label = (rng.random(n) < 1 / (1 + np.exp(-2 * z))).astype(np.float32)
    return dict(amount=amount, age_days=age_days, hour=hour, merchant=merchant, label=label)


class Scaler:
    """Median / IQR, insensitive to outliers."""

    def fit(self, x):
        q1, self.med, q3 = np.percentile(x, [25, 50, 75], axis=0)
        self.iqr = q3 - q1
        return self

    def __call__(self, x):
        return (x - self.med) / self.iqr


class Transactions(Dataset):
    def __init__(self, rec, scaler=None):
        num = np.stack([np.log(rec["amount"]), np.log(rec["age_days"]), np.sin(rec["hour"] / 24 * 2 * np.pi),
                        np.cos(rec["hour"] / 24 * 2 * np.pi)], 1)
        self.scaler = scaler or Scaler().fit(num)
        self.num = self.scaler(num).astype(np.float32)
        self.cat = rec["merchant"].astype(np.int64)
        self.y = rec["label"]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.num[i], self.cat[i], self.y[i]


class FraudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.merchant = nn.Embedding(40, 8)
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, num, cat):
        return self.net(torch.cat([num, self.merchant(cat)], 1)).squeeze(1)


def auc(score, y):
    order = score.argsort()
    rank = torch.empty_like(score)
    rank[order] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    pos = y.sum()
    return ((rank[y == 1].sum() - pos * (pos + 1) / 2) / (pos * (len(y) - pos))).item()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=6)
    return p.parse_args()


def main():
    a = parse()
    torch.manual_seed(a.seed)
    train = Transactions(load_records(6400, seed=10))
    test = Transactions(load_records(1500, seed=11), train.scaler)
    dl = DataLoader(train, a.batch_size, shuffle=True)
    net = FraudNet()
    opt = torch.optim.Adam(net.parameters(), lr=a.lr)
    bce = nn.BCEWithLogitsLoss()
    for epoch in range(a.epochs):
        net.train()
        for i, (num, cat, y) in enumerate(dl):
            loss = bce(net(num, cat), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i % 25 == 0:
                print(f"epoch {epoch} it {i:3d} loss {loss.item():.4f}")
        net.eval()
        with torch.no_grad():
            s = net(torch.from_numpy(test.num), torch.from_numpy(test.cat))
        print(f"epoch {epoch} test auc {auc(s, torch.from_numpy(test.y)):.4f}")


if __name__ == "__main__":
    main()
