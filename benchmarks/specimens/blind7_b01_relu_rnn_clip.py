"""Long-horizon load forecaster: ReLU recurrence (identity start) trained with SGD."""
TRUTH = {
    "id": "blind7-b01-relu-rnn-clip",
    "row": None,
    "title": "clip_grad_norm_ is called before backward (on zeroed gradients), so no clipping is in force at the step and the recurrence blows up",
    "family": "lstm",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["grad-clip-not-applied"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    hidden: int = 48
    seq_len: int = 50
    batch: int = 32
    steps: int = 350
    lr: float = 0.01
    momentum: float = 0.9
    max_grad_norm: float = 0.5
    seed: int = 11


class ReLURecurrence(nn.Module):
    """h_t = relu(W h_{t-1} + U x_t + b), W starts at the identity (Le et al. 2015)."""

    def __init__(self, n_in, hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.rec = nn.Linear(hidden, hidden, bias=False)
        nn.init.normal_(self.inp.weight, std=0.05)
        nn.init.zeros_(self.inp.bias)
        nn.init.eye_(self.rec.weight)

    def forward(self, x):
        u = self.inp(x)
        h = x.new_zeros(x.size(0), self.rec.out_features)
        for t in range(x.size(1)):
            h = torch.relu(self.rec(h) + u[:, t])
        return h


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.core = ReLURecurrence(2, cfg.hidden)
        self.out = nn.Linear(cfg.hidden, 1)

    def forward(self, x):
        return self.out(self.core(x)).squeeze(-1)


def make_batch(cfg, gen):
    # hourly load and temperature; target is the thermally smoothed demand
    load = torch.rand(cfg.batch, cfg.seq_len, generator=gen) + torch.rand(cfg.batch, 1, generator=gen)
    temp = torch.randn(cfg.batch, 1, generator=gen) + 0.2 * torch.randn(cfg.batch, cfg.seq_len, generator=gen)
    w = 0.9 ** torch.arange(cfg.seq_len - 1, -1, -1.0)
    y = ((load + 0.4 * temp) * (w / w.sum())).sum(1)
    return torch.stack([load, temp], -1), y


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = Forecaster(cfg)
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
    crit = nn.MSELoss()
    for step in range(cfg.steps):
        x, y = make_batch(cfg, gen)
        opt.zero_grad(set_to_none=False)
        loss = crit(model(x), y)
        nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(f"step {step:4d} mse {loss.item():.4f} rmse {math.sqrt(loss.item()):.4f}")
    print("done", loss.item())


if __name__ == "__main__":
    main()
