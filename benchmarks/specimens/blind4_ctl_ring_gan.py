import argparse
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-ctl_ring_gan",
    "title": "A healthy hinge GAN on a ring of Gaussians with an EMA generator.",
    "family": "gan",
    "needs": "cpu",
    "trap": "Losses oscillate and do not fall, the discriminator is frozen for each generator step, fakes are detached for each discriminator step, two optimizers with beta1 = 0.",
}


class G(nn.Module):
    def __init__(self, z=8, w=96):
        super().__init__()
        self.z = z
        self.net = nn.Sequential(nn.Linear(z, w), nn.LeakyReLU(0.2), nn.Linear(w, w), nn.LeakyReLU(0.2), nn.Linear(w, 2))

    def forward(self, n, gen):
        return self.net(torch.randn(n, self.z, generator=gen))


class D(nn.Module):
    def __init__(self, w=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, w), nn.LeakyReLU(0.2), nn.Linear(w, w), nn.LeakyReLU(0.2))
        self.score = nn.Linear(w, 1)

    def forward(self, x):
        return self.score(self.net(x)).squeeze(-1)


def ring(n, rng):
    k = rng.integers(0, 8, n)
    c = np.stack([np.cos(k * math.pi / 4), np.sin(k * math.pi / 4)], 1) * 1.5
    return torch.tensor(c + 0.1 * rng.normal(size=(n, 2)), dtype=torch.float32)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=200)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--lr-g", type=float, default=1e-3)
    p.add_argument("--lr-d", type=float, default=2e-3)
    p.add_argument("--ema", type=float, default=0.97)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng, gen = np.random.default_rng(0), torch.Generator().manual_seed(0)
    g, d, g_ema = G(), D(), G()
    g_ema.load_state_dict(g.state_dict())
    g_ema.requires_grad_(False)
    og = torch.optim.Adam(g.parameters(), lr=a.lr_g, betas=(0.0, 0.99))
    od = torch.optim.Adam(d.parameters(), lr=a.lr_d, betas=(0.0, 0.99))
    for it in range(a.iters):
        d.requires_grad_(True)
        real = ring(a.batch, rng).requires_grad_(True)
        fake = g(a.batch, gen).detach()
        sr = d(real)
        gp = torch.autograd.grad(sr.sum(), real, create_graph=True)[0].pow(2).sum(1).mean()
        ld = F.relu(1 - sr).mean() + F.relu(1 + d(fake)).mean() + 0.05 * gp
        od.zero_grad()
        ld.backward()
        od.step()
        d.requires_grad_(False)
        lg = -d(g(a.batch, gen)).mean()
        og.zero_grad()
        lg.backward()
        og.step()
        with torch.no_grad():
            for pe, pg in zip(g_ema.parameters(), g.parameters()):
                pe.lerp_(pg, 1 - a.ema)
        if it % 20 == 0 or it == a.iters - 1:
            with torch.no_grad():
                s = g_ema(1000, gen)
            r = s.norm(dim=1)
            modes = ((torch.atan2(s[:, 1], s[:, 0]) / (math.pi / 4)).round() % 8).unique().numel()
            print(f"it {it} D {ld.item():.3f} G {lg.item():.3f} radius {r.mean().item():.2f}+-{r.std().item():.2f} modes {modes}")


if __name__ == "__main__":
    main()
