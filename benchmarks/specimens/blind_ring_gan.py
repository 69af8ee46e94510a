import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-ring-gan",
    "title": "GAN on a noisy spiral, non-saturating loss, two time-scale rates and an averaged generator",
    "family": "gan",
    "needs": "cpu",
    "trap": "neither loss goes down; the discriminator loss stays near 2 ln 2; beta1 = 0.5; an averaged copy never gets gradients",
}

torch.manual_seed(12)


def real(n):
    t = torch.rand(n).sqrt() * 2.5 * math.pi + 0.5
    xy = torch.stack([t * t.cos(), t * t.sin()], 1) / 4
    return xy + 0.05 * torch.randn(n, 2)


def mlp(i, o, act):
    return nn.Sequential(nn.Linear(i, 96), act(), nn.Linear(96, 96), act(), nn.Linear(96, o))


class Generator(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.latent = latent
        self.net = mlp(latent, 2, nn.ReLU)

    def forward(self, n):
        return self.net(torch.randn(n, self.latent))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2, 1, lambda: nn.LeakyReLU(0.2))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def sliced_distance(a, b, n_proj=64):
    d = F.normalize(torch.randn(2, n_proj), dim=0)
    return ((a @ d).sort(0).values - (b @ d).sort(0).values).abs().mean().item()


G, D, G_avg = Generator(), Discriminator(), Generator()
G_avg.load_state_dict(G.state_dict())
for p in G_avg.parameters():
    p.requires_grad_(False)
opt_g = torch.optim.Adam(G.parameters(), lr=5e-4, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))

print("distance at start", round(sliced_distance(real(2000), G(2000).detach()), 3))
for it in range(300):
    x, z = real(128), G(128)
    loss_d = F.softplus(-D(x)).mean() + F.softplus(D(z.detach())).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    for p in D.parameters():
        p.requires_grad_(False)
    loss_g = F.softplus(-D(G(128))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    for p in D.parameters():
        p.requires_grad_(True)

    with torch.no_grad():
        for pa, pg in zip(G_avg.parameters(), G.parameters()):
            pa.lerp_(pg, 0.03)
    if (it + 1) % 50 == 0:
        with torch.no_grad():
            dist = sliced_distance(real(2000), G_avg(2000))
        print(f"{it + 1}: D {loss_d.item():.3f} G {loss_g.item():.3f} distance {dist:.3f}")
