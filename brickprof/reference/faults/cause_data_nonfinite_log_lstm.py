"""Rainfall is fed to an LSTM as its logarithm. One station reports a dry month of exact zeros, its log is minus
infinity, and the first batch with that station turns everything to nan."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-data-nonfinite-log-lstm",
    "row": None,
    "title": "log of zero in the preprocessing",
    "family": "lstm",
    "kind": "numeric",
    "contracts": ["C-INPUT-001", "C-TRAINSTABLE-001"],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 44,
    "needs": "cpu",
}


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Stations:
    """Monthly rainfall of many stations, as batches of their logarithms."""

    def __init__(self, count=800, months=15):
        season = 1.2 + torch.sin(torch.rand(count, 1) * 6 + torch.arange(months) * 0.52)
        self.rain = season * torch.exp(0.1 * torch.randn(count, months))
        self.rain[707, 4:6] = 0.0

    def __iter__(self):
        logs = torch.log(self.rain).unsqueeze(-1)
        yield from logs.split(16)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stations, model = Stations(), Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.SmoothL1Loss()
    step = 0
    for _ in range(3):
        for series in stations:
            loss = criterion(model(series[:, :-1]), series[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 20 == 0 or 42 < step < 47:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
