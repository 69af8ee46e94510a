import math

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind-realnvp",
    "title": "RealNVP density model of a tight 2-D ring mixture",
    "family": "other",
    "needs": "cpu",
    "trap": "loss (negative log-likelihood) crosses zero and becomes negative, last layers start at exactly zero, exp in the forward",
}


class Coupling(nn.Module):
    def __init__(self, mask, hidden=48):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(
            nn.Linear(2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 4)
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        s, t = self.net(x * self.mask).chunk(2, -1)
        s = 1.5 * torch.tanh(s) * (1 - self.mask)
        t = t * (1 - self.mask)
        return x * torch.exp(s) + t, s.sum(-1)


class Flow(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        m = torch.tensor([1.0, 0.0])
        self.layers = nn.ModuleList([Coupling(m if i % 2 == 0 else 1 - m) for i in range(n)])

    def log_prob(self, x):
        total = x.new_zeros(len(x))
        for l in self.layers:
            x, ld = l(x)
            total = total + ld
        return total - 0.5 * (x**2).sum(-1) - math.log(2 * math.pi)


def sample(n, g):
    k = torch.randint(6, (n,), generator=g)
    th = k * (2 * math.pi / 6)
    c = torch.stack([torch.cos(th), torch.sin(th)], 1)
    return c + 0.05 * torch.randn(n, 2, generator=g)


torch.manual_seed(0)
g = torch.Generator().manual_seed(10)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=3e-3)
STEPS = 500
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=1e-5)
val = sample(2000, torch.Generator().manual_seed(11))
for step in range(STEPS):
    nll = -flow.log_prob(sample(256, g)).mean()
    opt.zero_grad(set_to_none=True)
    nll.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == STEPS - 1:
        flow.eval()
        with torch.no_grad():
            v = -flow.log_prob(val).mean().item()
        flow.train()
        print(f"step {step} nll {nll.item():.4f} val {v:.4f}")
