import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "blind6-e02-wave-denoiser",
    "row": None,
    "title": "base lr scaled by batch/256 with a tiny batch gives 9e-6 at the peak; the diffusion model hardly moves",
    "family": "cnn",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["learning-rate-too-low"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

p = argparse.ArgumentParser()
p.add_argument("--blr", type=float, default=1.5e-4, help="base lr, absolute lr = blr * batch / 256")
p.add_argument("--batch-size", type=int, default=16)
p.add_argument("--steps", type=int, default=200)
p.add_argument("--warmup", type=int, default=20)
p.add_argument("--timesteps", type=int, default=100)
p.add_argument("--ema", type=float, default=0.98)
args = p.parse_args()

torch.manual_seed(4)
betas = torch.linspace(1e-4, 0.06, args.timesteps)
abar = torch.cumprod(1 - betas, 0)


def waves(n):
    t = torch.linspace(0, 1, 64)
    f = torch.randint(1, 5, (n, 1)).float()
    ph = torch.rand(n, 1) * 2 * math.pi
    return (torch.sin(2 * math.pi * f * t + ph) * (0.8 + 0.4 * torch.rand(n, 1))).unsqueeze(1)


class Block(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.c1 = nn.Conv1d(cin, cout, 5, padding=2)
        self.c2 = nn.Conv1d(cout, cout, 5, padding=2)
        self.n1, self.n2 = nn.GroupNorm(4, cout), nn.GroupNorm(4, cout)
        self.t = nn.Linear(temb, cout)
        self.skip = nn.Conv1d(cin, cout, 1)

    def forward(self, x, t):
        h = F.silu(self.n1(self.c1(x)) + self.t(t)[:, :, None])
        return self.skip(x) + F.silu(self.n2(self.c2(h)))


class UNet1d(nn.Module):
    def __init__(self, w=16, temb=32):
        super().__init__()
        self.freqs = nn.Buffer(torch.exp(torch.linspace(0, -6, temb // 2)))
        self.time = nn.Sequential(nn.Linear(temb, temb), nn.SiLU())
        self.d1 = Block(1, w, temb)
        self.d2 = Block(w, 2 * w, temb)
        self.mid = Block(2 * w, 2 * w, temb)
        self.u2 = Block(4 * w, w, temb)
        self.u1 = Block(2 * w, w, temb)
        self.out = nn.Conv1d(w, 1, 1)

    def forward(self, x, t):
        a = t.float()[:, None] * self.freqs
        e = self.time(torch.cat([a.sin(), a.cos()], -1))
        h1 = self.d1(x, e)
        h2 = self.d2(F.avg_pool1d(h1, 2), e)
        m = self.mid(F.avg_pool1d(h2, 2), e)
        m = self.u2(torch.cat([F.interpolate(m, scale_factor=2), h2], 1), e)
        m = self.u1(torch.cat([F.interpolate(m, scale_factor=2), h1], 1), e)
        return self.out(m)


def ddpm_loss(net, x0):
    t = torch.randint(0, args.timesteps, (x0.size(0),))
    a = abar[t][:, None, None]
    eps = torch.randn_like(x0)
    return F.mse_loss(net(a.sqrt() * x0 + (1 - a).sqrt() * eps, t), eps)


net = UNet1d()
ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(args.ema))
lr = args.blr * args.batch_size / 256
opt = torch.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)


def factor(s):
    if s < args.warmup:
        return (s + 1) / args.warmup
    return 0.5 * (1 + math.cos(math.pi * (s - args.warmup) / (args.steps - args.warmup)))


sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
run = None
for step in range(args.steps):
    loss = ddpm_loss(net, waves(args.batch_size))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    ema.update_parameters(net)
    run = loss.item() if run is None else 0.95 * run + 0.05 * loss.item()
    if step % 30 == 0:
        print(f"{step:5d} loss {run:.4f}")

ema.eval()
with torch.no_grad():
    print("ema eval loss", ddpm_loss(ema, waves(256)).item())
