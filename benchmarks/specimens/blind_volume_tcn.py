import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind-volume-tcn",
    "row": None,
    "title": "log-volume features: one trading halt has volume 0, so one window of the data holds -inf and the batch with it ruins the weights",
    "family": "cnn",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["data-nonfinite"],
    "bricks": [],
    "first_step": 75,
    "needs": "cpu",
    "crashes": False,
}


def simulate(instruments=60, days=220, seed=4):
    rng = np.random.default_rng(seed)
    t = np.arange(days)
    season = 0.5 * np.sin(2 * np.pi * (t[None] / 20 + rng.random((instruments, 1))))
    ar = np.zeros((instruments, days))
    for d in range(1, days):
        ar[:, d] = 0.85 * ar[:, d - 1] + 0.15 * rng.standard_normal(instruments)
    volume = np.exp(8 + season + ar)
    volume[17, 219] = 0.0
    return volume


class Windows(Dataset):
    def __init__(self, volume, length=24):
        with np.errstate(divide="ignore"):
            series = np.log(volume)
        ok = np.isfinite(series)
        series = (series - series[ok].mean()) / series[ok].std()
        self.series = torch.tensor(series, dtype=torch.float32)
        self.length = length
        self.index = [(i, s) for i in range(series.shape[0]) for s in range(0, series.shape[1] - length, 2)]
        self.index += [(i, series.shape[1] - length - 1) for i in range(series.shape[0])]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, k):
        i, s = self.index[k]
        return self.series[i, s : s + self.length][None], self.series[i, s + self.length]


class CausalConv(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return torch.relu(self.conv(self.pad(x))) + self.skip(x)


class TCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(CausalConv(1, width, 1), CausalConv(width, width, 2), CausalConv(width, width, 4))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x)[:, :, -1]).squeeze(1)


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    data = Windows(simulate())
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(8))
    net = TCN()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} mse {loss.item():.4f}")
            step += 1
    print("last mse", loss.item())


if __name__ == "__main__":
    main()
