"""Temporal convolution network forecasting a damped, driven oscillator."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

TRUTH = {
    "id": "blind-tcn",
    "row": None,
    "title": "weight_norm is applied to the convolutions after the optimizer was built: it holds the replaced weights",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["optimizer-stale-parameters"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class CausalConv(nn.Module):
    def __init__(self, cin, cout, k, dilation):
        super().__init__()
        self.pad = (k - 1) * dilation
        self.conv = nn.Conv1d(cin, cout, k, dilation=dilation)

    def forward(self, x):
        return self.conv(F.pad(x, (self.pad, 0)))


class TCN(nn.Module):
    def __init__(self, channels=24, levels=4, k=3):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 1)
        self.blocks = nn.ModuleList([CausalConv(channels, channels, k, 2**i) for i in range(levels)])
        self.out = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.out(h)


class Experiment:
    def __init__(self, lr=3e-3, steps=240, batch=32, length=64):
        torch.manual_seed(8)
        self.steps, self.batch, self.length = steps, batch, length
        self.model = TCN()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.setup_model()

    def setup_model(self):
        for m in self.model.modules():
            if isinstance(m, nn.Conv1d):
                weight_norm(m)

    def batch_of_series(self, n):
        t = torch.arange(self.length + 1).float()
        f1 = 0.15 + 0.25 * torch.rand(n, 1)
        f2 = 0.6 + 0.4 * torch.rand(n, 1)
        phase = 6.28 * torch.rand(n, 1)
        s = torch.sin(f1 * t + phase) + 0.5 * torch.sin(f2 * t) * torch.exp(-t / 60)
        s = s + 0.02 * torch.randn_like(s)
        return s[:, None, :-1], s[:, None, 1:]

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            x, y = self.batch_of_series(256)
            err = F.mse_loss(self.model(x)[..., 16:], y[..., 16:]).item()
        self.model.train()
        return err

    def run(self):
        self.model.train()
        for step in range(1, self.steps + 1):
            x, y = self.batch_of_series(self.batch)
            loss = F.mse_loss(self.model(x)[..., 16:], y[..., 16:])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % 40 == 0:
                print(f"step {step}: train {loss.item():.4f} eval {self.evaluate():.4f}")


if __name__ == "__main__":
    Experiment().run()
