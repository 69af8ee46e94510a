import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-click-model",
    "row": None,
    "title": "clicks/impressions is 0/0 for a handful of rows, the feature matrix holds NaN and one batch poisons the weights",
    "family": "mlp",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 24,
    "needs": "cpu",
    "crashes": False,
}


def raw_table(n, seed):
    r = np.random.default_rng(seed)
    quality = r.normal(size=n)
    impressions = r.poisson(np.exp(r.normal(3.25, 0.7, size=n)))
    rate = 1 / (1 + np.exp(-(quality - 1.0)))
    clicks = r.binomial(impressions, rate)
    price = np.exp(r.normal(size=n))
    hour = r.integers(0, 24, size=n)
    target = 1.5 * rate + 0.4 * np.log(price) * np.sin(2 * np.pi * hour / 24) + 0.1 * r.normal(size=n)
    return dict(impressions=impressions, clicks=clicks, price=price, hour=hour, target=target)


def features(t):
    with np.errstate(all="ignore"):
        ctr = t["clicks"] / t["impressions"]
    cols = [
        ctr * 2 - 0.6,
        (np.log1p(t["impressions"]) - 3.25) / 0.7,
        np.log(t["price"]),
        np.sin(2 * np.pi * t["hour"] / 24),
        np.cos(2 * np.pi * t["hour"] / 24),
    ]
    return np.stack(cols, 1).astype(np.float32)


class Ads(Dataset):
    def __init__(self, n, seed):
        t = raw_table(n, seed)
        self.x = torch.from_numpy(features(t))
        self.y = torch.tensor(t["target"], dtype=torch.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, k):
        return self.x[k], self.y[k]


def fit():
    torch.manual_seed(5)
    train = DataLoader(Ads(9600, 0), batch_size=64, shuffle=True)
    net = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    huber = nn.SmoothL1Loss()
    step = 0
    for epoch in range(2):
        net.train()
        for x, y in train:
            loss = huber(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 15 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    fit()
