from dataclasses import dataclass

import torch
from torch import nn

TRUTH = {
    "id": "blind4-linrec",
    "title": "A recurrent transition matrix initialised with spectral radius above one is unrolled over a long sequence without clipping, so gradients grow by a factor per time step and training blows up.",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["exploding-gradients", "grad-clip-not-applied"],
    "bricks": ["layers.0.ssm", "layers.1.ssm", "layers.0", "layers.1"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class HP:
    d_model: int = 24
    d_state: int = 32
    length: int = 64
    steps: int = 120
    batch: int = 16
    lr: float = 2e-3


class StateSpace(nn.Module):
    """h' = A h + B x ;  y = C h + D x"""

    def __init__(self, d_model, d_state):
        super().__init__()
        self.A = nn.Parameter(0.92 * torch.eye(d_state) + 0.02 * torch.randn(d_state, d_state))
        self.B = nn.Parameter(torch.randn(d_state, d_model) / d_model ** 0.5 * 0.1)
        self.C = nn.Parameter(torch.randn(d_model, d_state) / d_state ** 0.5)
        self.D = nn.Parameter(torch.ones(d_model))

    def forward(self, u):
        bu = u @ self.B.T
        h = bu.new_zeros(u.size(0), self.A.size(0))
        ys = []
        for t in range(u.size(1)):
            h = h @ self.A.T + bu[:, t]
            ys.append(h)
        return torch.stack(ys, 1) @ self.C.T + self.D * u


class Block(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.norm = nn.LayerNorm(hp.d_model)
        self.ssm = StateSpace(hp.d_model, hp.d_state)
        self.mix = nn.Linear(hp.d_model, hp.d_model)

    def forward(self, x):
        return x + self.mix(torch.nn.functional.gelu(self.ssm(self.norm(x))))


class Forecaster(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.inp = nn.Linear(1, hp.d_model)
        self.layers = nn.ModuleList([Block(hp) for _ in range(2)])
        self.out = nn.Linear(hp.d_model, 1)

    def forward(self, x):
        h = self.inp(x)
        for l in self.layers:
            h = l(h)
        return self.out(h)


def waves(n, length, gen):
    t = torch.arange(length + 1).float()
    f = torch.rand(n, 2, 1, generator=gen) * 0.3 + 0.05
    ph = torch.rand(n, 2, 1, generator=gen) * 6.28
    s = torch.sin(f * t + ph).sum(1)
    return s[:, :-1, None], s[:, 1:, None]


def run(hp):
    gen = torch.Generator().manual_seed(9)
    net = Forecaster(hp)
    opt = torch.optim.SGD(net.parameters(), lr=hp.lr, momentum=0.9)
    for i in range(hp.steps):
        x, y = waves(hp.batch, hp.length, gen)
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        gn = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        opt.step()
        if i % 10 == 0 or i < 5:
            print(i, f"mse {loss.item():.4g}", f"gnorm {gn.item():.3g}")


torch.set_num_threads(1)
torch.manual_seed(42)
run(HP())
