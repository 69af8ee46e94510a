import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

TRUTH = {
    "id": "blind-sensor-forecast",
    "row": None,
    "title": "a short export from one sensor is in millivolts instead of volts: its few windows make huge loss spikes",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["loss-spike-data"],
    "bricks": [],
    "first_step": 30,
    "needs": "cpu",
    "crashes": False,
}


class SensorWindows(Dataset):
    """Sliding windows over one sensor's trace, one step ahead target."""

    def __init__(self, trace, window=24):
        self.trace, self.window = trace, window

    def __len__(self):
        return (len(self.trace) - self.window) // 3

    def __getitem__(self, i):
        s = 3 * i
        return self.trace[s:s + self.window].unsqueeze(-1), self.trace[s + self.window]


def record(length, seed, unit="V"):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()
    f1, f2 = 0.05 + 0.1 * torch.rand(2, generator=g)
    x = torch.sin(6.28 * f1 * t) + 0.5 * torch.sin(6.28 * f2 * t + 1) + 0.05 * torch.randn(length, generator=g)
    return x * 1000 if unit == "mV" else x


def load_fleet():
    parts = [SensorWindows(record(900, s)) for s in range(16)]
    parts.append(SensorWindows(record(32, 91, unit="mV")))
    return ConcatDataset(parts)


class Forecaster(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.gru = nn.GRU(1, hidden, num_layers=1, batch_first=True)
        self.skip = nn.Linear(4, 1)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        h, _ = self.gru(x)
        return (self.out(h[:, -1]) + self.skip(x[:, -4:, 0])).squeeze(-1)


def main():
    torch.manual_seed(4)
    loader = DataLoader(load_fleet(), batch_size=24, shuffle=True, drop_last=True)
    val = torch.utils.data.default_collate([SensorWindows(record(600, 200))[i] for i in range(190)])
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 0 or loss.item() > 100:
                print(f"{step} {loss.item():.5g}")
            step += 1
        model.eval()
        with torch.no_grad():
            print(f"epoch {epoch} val {nn.functional.mse_loss(model(val[0]), val[1]).item():.4f}")
        model.train()


if __name__ == "__main__":
    main()
