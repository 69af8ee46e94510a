import argparse
import math
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

TRUTH = {
    "id": "blind4-ctl_gappy_forecast",
    "title": "A healthy GRU forecaster of sensor series with missing values, trained with a Gaussian likelihood.",
    "family": "lstm",
    "needs": "cpu",
    "trap": "Batches hold NaN for missing readings, which the model replaces and masks; the negative log-likelihood goes below zero.",
}


class Sensors(Dataset):
    def __init__(self, n, seed, context=32, horizon=4):
        rng = np.random.default_rng(seed)
        t = np.arange(context + horizon)
        f, ph, a = rng.uniform(0.15, 0.45, (n, 1)), rng.uniform(0, 6.28, (n, 1)), rng.uniform(0.6, 1.4, (n, 1))
        y = a * np.sin(f * t + ph) + 0.05 * rng.normal(size=(n, len(t)))
        y[rng.random(y.shape) < 0.1] = np.nan
        self.y, self.c = torch.tensor(y, dtype=torch.float32), context

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.y[i, :self.c], self.y[i, self.c:]


class GapGRU(nn.Module):
    def __init__(self, horizon, h=40):
        super().__init__()
        self.inp = nn.Linear(2, h)
        self.rnn = nn.GRU(h, h, batch_first=True)
        self.out = nn.Linear(h, 2 * horizon)

    def forward(self, past):
        seen = ~torch.isnan(past)
        z = torch.stack([torch.nan_to_num(past), seen.float()], -1)
        _, h = self.rnn(torch.tanh(self.inp(z)))
        mu, s = self.out(h[-1]).chunk(2, -1)
        return mu, s.clamp(-5, 2)


def masked_nll(mu, log_sd, y):
    ok = ~torch.isnan(y)
    y = torch.where(ok, y, mu.detach())
    per = log_sd + 0.5 * ((y - mu) / log_sd.exp()) ** 2
    return (per * ok).sum() / ok.sum().clamp_min(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=5e-3)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tr = DataLoader(Sensors(1600, 0), a.batch, shuffle=True, generator=torch.Generator().manual_seed(0))
    past, fut = Sensors(300, 1)[:]
    model = GapGRU(4)
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    total = a.epochs * len(tr)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / total)))
    for ep in range(a.epochs):
        run = 0.0
        for x, y in tr:
            mu, s = model(x)
            loss = masked_nll(mu, s, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            sched.step()
            run += loss.item()
        with torch.no_grad():
            mu, s = model(past)
            rmse = torch.nanmean((mu - fut) ** 2).sqrt().item()
        print(f"epoch {ep} nll {run / len(tr):.4f} val nll {masked_nll(mu, s, fut).item():.4f} rmse {rmse:.4f}")


if __name__ == "__main__":
    main()
