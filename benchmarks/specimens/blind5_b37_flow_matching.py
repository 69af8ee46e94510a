"""Flow matching on a two-moon cloud: accumulation, bf16 autocast, EMA weights."""
import copy
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b37-flow-matching",
    "title": "flow matching on two moons with gradient accumulation, bf16 autocast and an EMA model",
    "family": "other",
    "needs": "cpu",
    "trap": "the loss falls little and stays noisy at an irreducible floor, two backwards per step (divided), last layer starts at zero, EMA model lags",
}

args = SimpleNamespace(steps=300, micro=192, accum=2, lr=3e-3, warmup=30, decay=0.98, width=96, seed=31)


def moons(n):
    a = math.pi * torch.rand(n)
    up = torch.rand(n) < 0.5
    x = torch.where(up, a.cos(), 1 - a.cos())
    y = torch.where(up, a.sin(), 0.5 - a.sin())
    p = torch.stack([x - 0.5, y - 0.25], 1) * 1.5
    return p + 0.05 * torch.randn(n, 2)


class Velocity(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(4) * math.pi / 2)
        self.inp = nn.Linear(2 + 8, w)
        self.h1 = nn.Linear(w, w)
        self.h2 = nn.Linear(w, w)
        self.out = nn.Linear(w, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        a = t[:, None] * self.freq
        h = F.silu(self.inp(torch.cat([x, a.sin(), a.cos()], 1)))
        h = h + F.silu(self.h1(h))
        h = h + F.silu(self.h2(h))
        return self.out(h)


@torch.no_grad()
def sample(model, n, k=30):
    model.eval()
    x = torch.randn(n, 2)
    for i in range(k):
        x = x + model(x, torch.full((n,), (i + 0.5) / k)) / k
    return x


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def lr_factor(s):
    if s < args.warmup:
        return (s + 1) / args.warmup
    return 0.5 * (1 + math.cos(math.pi * (s - args.warmup) / (args.steps - args.warmup)))


torch.manual_seed(args.seed)
model = Velocity(args.width)
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_factor)
run = 0.0
for step in range(args.steps):
    model.train()
    opt.zero_grad(set_to_none=True)
    for _ in range(args.accum):
        x1 = moons(args.micro)
        x0 = torch.randn_like(x1)
        t = torch.rand(args.micro)
        xt = (1 - t[:, None]) * x0 + t[:, None] * x1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            v = model(xt, t)
        loss = F.mse_loss(v.float(), x1 - x0) / args.accum
        loss.backward()
        run += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()):
            e.lerp_(p, 1 - args.decay)
    if (step + 1) % 50 == 0:
        print(f"step {step + 1} loss {run / 50:.4f} energy distance {energy_distance(sample(ema, 800), moons(800)):.4f}")
        run = 0.0
