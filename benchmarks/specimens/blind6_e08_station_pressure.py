"""Forecast the next hours of pressure for a fleet of weather stations."""
import math
import torch
import torch.nn as nn

TRUTH = {
    "id": "blind6-e08-station-pressure",
    "row": None,
    "title": "one of 120 stations delivers its readings in hPa instead of kPa (x10); its batch spikes the loss",
    "family": "lstm",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["loss-spike-data"],
    "bricks": [],
    "first_step": 98,
    "needs": "cpu",
    "crashes": False,
}

HISTORY, HORIZON = 36, 6
STATIONS = 120
OLD_LOGGERS = {"st-070"}


def read_station(name, gen):
    """Three weeks of hourly anomalies (reading minus the long-term mean)."""
    t = torch.arange(21 * 24).float()
    ph = torch.rand(4, generator=gen) * 2 * math.pi
    daily = 1.2 * torch.sin(2 * math.pi * t / 24 + ph[0]) + 0.5 * torch.sin(2 * math.pi * t / 12 + ph[1])
    synoptic = 1.5 * torch.sin(2 * math.pi * t / 110 + ph[2])
    series = daily + synoptic + 0.1 * torch.randn(len(t), generator=gen)
    if name in OLD_LOGGERS:  # firmware 1.x logs hPa, all the others kPa
        series = series * 10
    return series


def windows(series, n, gen):
    start = torch.randint(0, len(series) - HISTORY - HORIZON, (n,), generator=gen)
    idx = start[:, None] + torch.arange(HISTORY + HORIZON)
    w = series[idx]
    return w[:, :HISTORY, None], w[:, HISTORY:]


class Forecaster(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, HORIZON))

    def forward(self, x):
        _, h = self.gru(x)
        return x[:, -1] + self.head(h[-1])


def main():
    torch.manual_seed(13)
    gen = torch.Generator().manual_seed(8)
    fleet = {f"st-{i:03d}": read_station(f"st-{i:03d}", gen) for i in range(STATIONS)}
    holdout = [f"st-{i:03d}" for i in range(100, 110)]
    names = [n for n in fleet if n not in holdout]
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    passes = 2
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, passes * len(names))
    step = 0
    for epoch in range(passes):
        order = torch.randperm(len(names), generator=gen).tolist()
        for k in order:
            x, y = windows(fleet[names[k]], 64, gen)
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
        model.eval()
        with torch.no_grad():
            errs = []
            for n in holdout:
                x, y = windows(fleet[n], 64, gen)
                errs.append(nn.functional.mse_loss(model(x), y).item())
        model.train()
        print(f"== pass {epoch} holdout mse {sum(errs) / len(errs):.4f}")


if __name__ == "__main__":
    main()
