import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-b02-tcn-forecast",
    "row": None,
    "title": "residual blocks add the branch output to itself (x was overwritten), so no skip path exists through 10 blocks",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["residual-path-broken", "vanishing-gradients"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Cfg:
    channels: int = 16
    blocks: int = 10
    kernel: int = 3
    context: int = 48
    horizon: int = 6
    batch: int = 48
    epochs: int = 4
    lr: float = 2e-3


class CausalConv(nn.Conv1d):
    def forward(self, x):
        pad = (self.kernel_size[0] - 1) * self.dilation[0]
        return super().forward(F.pad(x, (pad, 0)))


class TemporalBlock(nn.Module):
    def __init__(self, cin, cout, k, dilation, p=0.05):
        super().__init__()
        self.conv1 = CausalConv(cin, cout, k, dilation=dilation)
        self.conv2 = CausalConv(cout, cout, k, dilation=dilation)
        self.drop = nn.Dropout(p)
        self.shortcut = nn.Identity() if cin == cout else nn.Conv1d(cin, cout, 1)

    def forward(self, x):
        x = self.drop(F.relu(self.conv1(x)))
        x = self.drop(F.relu(self.conv2(x)))
        return F.relu(x + self.shortcut(x))


class TCN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Conv1d(1, cfg.channels, 1)
        self.blocks = nn.Sequential(*[
            TemporalBlock(cfg.channels, cfg.channels, cfg.kernel, 2 ** (i % 4)) for i in range(cfg.blocks)])
        self.head = nn.Linear(cfg.channels, cfg.horizon)

    def forward(self, x):
        h = self.blocks(self.stem(x.unsqueeze(1)))
        return self.head(h[:, :, -1])


def make_series(n, cfg, gen):
    L = cfg.context + cfg.horizon
    t = torch.arange(L).float()
    per = torch.empty(n, 2).uniform_(8, 30, generator=gen)
    ph = torch.empty(n, 2).uniform_(0, 2 * math.pi, generator=gen)
    amp = torch.empty(n, 2).uniform_(0.4, 1.2, generator=gen)
    s = (amp[..., None] * torch.sin(2 * math.pi * t / per[..., None] + ph[..., None])).sum(1)
    s = s + 0.05 * torch.randn(s.shape, generator=gen)
    return s[:, :cfg.context], s[:, cfg.context:]


def run(cfg):
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(5)
    xtr, ytr = make_series(1920, cfg, gen)
    xva, yva = make_series(400, cfg, gen)
    dl = DataLoader(TensorDataset(xtr, ytr), batch_size=cfg.batch, shuffle=True, drop_last=True)
    net = TCN(cfg)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=cfg.epochs * len(dl))
    for epoch in range(cfg.epochs):
        net.train()
        acc = 0.0
        for x, y in dl:
            loss = F.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            acc += loss.item()
        net.eval()
        with torch.no_grad():
            val = F.mse_loss(net(xva), yva).item()
        print(f"[{epoch}] train mse {acc / len(dl):.4f}  val mse {val:.4f}  (target var {yva.var():.3f})")


if __name__ == "__main__":
    run(Cfg())
