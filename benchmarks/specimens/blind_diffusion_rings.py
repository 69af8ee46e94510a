import copy
import math

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind-diffusion-rings",
    "row": 43,
    "title": "the total number of steps is counted in samples instead of batches: the warm-up is many times longer than the run and the peak rate is never reached",
    "family": "mlp",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-never-peaks", "schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

cfg = {"epochs": 20, "batch": 256, "lr": 1e-3, "warmup_ratio": 0.1, "T": 50, "ema": 0.99}


def rings(n):
    r = torch.where(torch.rand(n) < 0.5, 1.0, 2.0)
    a = 2 * math.pi * torch.rand(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1) + 0.05 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.temb = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.inp = nn.Linear(2, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, 2)
        self.register_buffer("freqs", torch.exp(torch.linspace(0, math.log(60), 8)))

    def forward(self, x, t):
        a = t[:, None] * self.freqs[None]
        e = self.temb(torch.cat([a.sin(), a.cos()], 1))
        h = self.inp(x)
        for m in self.mid:
            h = h + torch.nn.functional.silu(m(h + e))
        return self.out(h)


def make_schedule(optimizer, total_steps, warmup_ratio):
    warm = int(total_steps * warmup_ratio)

    def fn(step):
        if step < warm:
            return (step + 1) / warm
        frac = (step - warm) / max(1, total_steps - warm)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, frac)))

    return LambdaLR(optimizer, fn)


torch.manual_seed(4)
data = TensorDataset(rings(4096))
loader = DataLoader(data, batch_size=cfg["batch"], shuffle=True)
betas = torch.linspace(1e-3, 0.15, cfg["T"])
abar = torch.cumprod(1 - betas, 0)

net = Denoiser()
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=cfg["lr"], weight_decay=1e-4)
sched = make_schedule(opt, cfg["epochs"] * len(data), cfg["warmup_ratio"])

for epoch in range(cfg["epochs"]):
    tot = 0.0
    for (x0,) in loader:
        t = torch.randint(0, cfg["T"], (len(x0),))
        eps = torch.randn_like(x0)
        a = abar[t][:, None]
        xt = a.sqrt() * x0 + (1 - a).sqrt() * eps
        loss = ((net(xt, t.float() / cfg["T"]) - eps) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            for pe, p in zip(ema.parameters(), net.parameters()):
                pe.lerp_(p, 1 - cfg["ema"])
        tot += loss.item()
    print(f"epoch {epoch:2d} loss {tot / len(loader):.4f} lr {sched.get_last_lr()[0]:.2e}")
