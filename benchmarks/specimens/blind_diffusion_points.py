import argparse
import copy
import math
import torch
import torch.nn as nn

TRUTH = {"id": "blind-diffusion-points", "title": "denoising diffusion of 2-D points with EMA under bf16 autocast", "family": "other", "needs": "cpu",
           "trap": "noisy loss with a high floor, bf16 activations, zero-initialised output layer, an averaged copy that gets no gradients"}


def moons(n):
    a = math.pi * torch.rand(n)
    up = torch.rand(n) < 0.5
    x = torch.where(up, a.cos(), 1 - a.cos())
    y = torch.where(up, a.sin(), 0.5 - a.sin())
    pts = torch.stack([x - 0.5, y - 0.25], 1) + 0.04 * torch.randn(n, 2)
    return pts / torch.tensor([0.86, 0.5])


class Eps(nn.Module):
    def __init__(self, h=96):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(6))
        self.inp = nn.Linear(2 + 12, h)
        self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(h), nn.Linear(h, 2 * h), nn.SiLU(), nn.Linear(2 * h, h)) for _ in range(3))
        self.out = nn.Linear(h, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        f = t[:, None] * self.freq * math.pi
        h = self.inp(torch.cat([x, f.sin(), f.cos()], 1))
        for m in self.mid:
            h = h + m(h)
        return self.out(h)


class Diffusion:
    def __init__(self, steps=50):
        beta = torch.linspace(1e-3, 0.15, steps)
        self.steps, self.beta, self.abar = steps, beta, torch.cumprod(1 - beta, 0)

    def loss(self, net, x):
        t = torch.randint(0, self.steps, (len(x),))
        e = torch.randn_like(x)
        a = self.abar[t].unsqueeze(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = net(a.sqrt() * x + (1 - a).sqrt() * e, t / self.steps)
        return (pred.float() - e).pow(2).mean()

    @torch.no_grad()
    def sample(self, net, n):
        x = torch.randn(n, 2)
        for t in reversed(range(self.steps)):
            e = net(x, torch.full((n,), t / self.steps))
            x = (x - self.beta[t] / (1 - self.abar[t]).sqrt() * e) / (1 - self.beta[t]).sqrt()
            if t:
                x = x + self.beta[t].sqrt() * torch.randn_like(x)
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--lr", type=float, default=2e-3)
    a = ap.parse_args()
    torch.manual_seed(0)
    net, diff = Eps(), Diffusion()
    avg = copy.deepcopy(net).requires_grad_(False).eval()
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 25) * 0.5 * (1 + math.cos(math.pi * min(1, s / a.steps))))
    smooth = None
    for s in range(a.steps):
        loss = diff.loss(net, moons(256))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        d = min(0.98, (s + 1) / (s + 10))
        with torch.no_grad():
            for p, q in zip(avg.parameters(), net.parameters()):
                p.lerp_(q, 1 - d)
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if (s + 1) % 50 == 0:
            print(f"{s + 1} loss {smooth:.4f}")
    x, ref = diff.sample(avg, 500), moons(500)
    print(f"distance of samples to the data {torch.cdist(x, ref).min(1).values.mean():.3f}, coverage {torch.cdist(ref, x).min(1).values.mean():.3f}")


if __name__ == "__main__":
    main()
