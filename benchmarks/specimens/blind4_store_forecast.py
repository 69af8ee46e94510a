import math
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

TRUTH = {
    "id": "blind4-store_forecast",
    "title": "Windows are standardised by their own standard deviation, and a window of a closed store is constant, so the batch that holds it contains NaN inputs.",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 21,
    "needs": "cpu",
    "crashes": False,
}

CFG = {"stores": 40, "days": 420, "context": 56, "horizon": 7, "hidden": 32, "batch": 64, "epochs": 2,
       "lr": 3e-3, "max_norm": 1.0, "seed": 21}


def simulate(cfg):
    rng = np.random.default_rng(cfg["seed"])
    day = np.arange(cfg["days"])
    series = []
    for s in range(cfg["stores"]):
        base = rng.uniform(40, 200)
        week = rng.normal(0, 0.2, 7)
        y = base * (1 + week[day % 7] + 0.2 * np.sin(2 * np.pi * day / 180 + rng.uniform(0, 6)))
        y = np.maximum(y + rng.normal(0, base * 0.05, cfg["days"]), 0)
        series.append(y)
    y = np.stack(series).astype(np.float32)
    y[17, 200:264] = 0.0
    return y


class Windows(Dataset):
    def __init__(self, y, cfg, lo, hi):
        self.y, self.cfg = y, cfg
        span = cfg["context"] + cfg["horizon"]
        self.index = [(s, d) for s in range(len(y)) for d in range(lo, hi - span, 2)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        s, d = self.index[i]
        c, h = self.cfg["context"], self.cfg["horizon"]
        past, future = self.y[s, d:d + c], self.y[s, d + c:d + c + h]
        mu, sd = past.mean(), past.std()
        with np.errstate(all="ignore"):
            past, future = (past - mu) / sd, (future - mu) / sd
        dow = (np.arange(d, d + c) % 7) / 6.0 - 0.5
        return torch.from_numpy(np.stack([past, dow], 1).astype(np.float32)), torch.from_numpy(future.astype(np.float32))


class Seq2Horizon(nn.Module):
    def __init__(self, hidden, horizon, quantiles):
        super().__init__()
        self.inp = nn.Linear(2, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.GELU())
        self.out = nn.Linear(hidden, horizon * len(quantiles))
        self.register_buffer("q", torch.tensor(quantiles))
        self.h = horizon

    def forward(self, x):
        z, last = self.rnn(self.inp(x))
        return self.out(self.mix(torch.cat([z.mean(1), last[-1]], 1))).view(len(x), self.h, -1)

    def loss(self, pred, y):
        e = y[..., None] - pred
        return torch.maximum(self.q * e, (self.q - 1) * e).mean()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(CFG["seed"])
    y = simulate(CFG)
    train = Windows(y, CFG, 0, 330)
    loader = DataLoader(train, CFG["batch"], shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(5))
    model = Seq2Horizon(CFG["hidden"], CFG["horizon"], [0.1, 0.5, 0.9])
    opt = torch.optim.Adam(model.parameters(), lr=CFG["lr"])
    total = CFG["epochs"] * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / total)))
    step = 0
    for epoch in range(CFG["epochs"]):
        for x, t in loader:
            opt.zero_grad()
            loss = model.loss(model(x), t)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CFG["max_norm"])
            opt.step()
            sched.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} pinball {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
