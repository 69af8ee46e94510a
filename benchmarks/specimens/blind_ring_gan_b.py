"""Hinge GAN on a ring of Gaussians."""

import math

import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm

TRUTH = {
    "id": "blind-ring-gan-b",
    "title": "hinge GAN with spectral norm, EMA generator",
    "family": "gan",
    "needs": "cpu",
    "trap": "losses oscillate and never fall, generator loss goes up, critic gets gradients from the generator pass, betas (0, 0.9)",
}


def real_batch(n):
    k = torch.randint(0, 4, (n,))
    ang = k * (2 * math.pi / 4)
    return torch.stack([ang.cos(), ang.sin()], 1) * 1.5 + 0.2 * torch.randn(n, 2)


class Generator(nn.Module):
    def __init__(self, z=8, h=80):
        super().__init__()
        self.z = z
        self.net = nn.Sequential(
            nn.Linear(z, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, 2)
        )

    def forward(self, n):
        return self.net(torch.randn(n, self.z))


class Critic(nn.Module):
    def __init__(self, h=80):
        super().__init__()
        sn = spectral_norm
        self.net = nn.Sequential(
            sn(nn.Linear(2, h)), nn.LeakyReLU(0.2), sn(nn.Linear(h, h)), nn.LeakyReLU(0.2), sn(nn.Linear(h, 1))
        )

    def forward(self, x):
        return self.net(2.0 * x).squeeze(-1) * 6.0


@torch.no_grad()
def quality(gen):
    gen.eval()
    x = gen(1000)
    gen.train()
    ang = torch.arange(4) * (2 * math.pi / 4)
    centers = torch.stack([ang.cos(), ang.sin()], 1) * 1.5
    d, k = torch.cdist(x, centers).min(1)
    good = d < 0.6
    return good.float().mean().item(), len(k[good].unique())


def main(steps=300, n=256):
    torch.manual_seed(0)
    G, D, ema = Generator(), Critic(), Generator()
    ema.load_state_dict(G.state_dict())
    ema.requires_grad_(False)
    og = torch.optim.Adam(G.parameters(), lr=4e-3, betas=(0.0, 0.9))
    od = torch.optim.Adam(D.parameters(), lr=4e-3, betas=(0.0, 0.9))
    print("start quality", quality(ema))
    for step in range(steps):
        fake = G(n).detach()
        d_loss = torch.relu(1 - D(real_batch(n))).mean() + torch.relu(1 + D(fake)).mean()
        od.zero_grad()
        d_loss.backward()
        od.step()
        g_loss = -D(G(n)).mean()
        og.zero_grad()
        g_loss.backward()
        og.step()
        with torch.no_grad():
            for pe, p in zip(ema.parameters(), G.parameters()):
                pe.lerp_(p, 0.05)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step} d {d_loss.item():.3f} g {g_loss.item():.3f} quality {quality(ema)}")


if __name__ == "__main__":
    main()
