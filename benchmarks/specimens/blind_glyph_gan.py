"""GAN on 20x20 glyph-like images; the discriminator also sees older fakes."""

import random
import resource

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-glyph-gan",
    "row": None,
    "title": "the pool of past fakes grows without bound and keeps each batch with its graph",
    "family": "gan",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Generator(nn.Module):
    def __init__(self, z=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(z, 128), nn.LeakyReLU(0.2), nn.Linear(128, 256), nn.LeakyReLU(0.2), nn.Linear(256, 400), nn.Tanh()
        )

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(400, 128),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.LeakyReLU(0.2),
            nn.Linear(64, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class FakePool:
    def __init__(self, rng):
        self.items, self.rng = [], rng

    def push(self, batch):
        self.items.append(batch)

    def sample(self, n):
        picks = self.rng.choices(self.items, k=4)
        return torch.cat([p[: n // 4] for p in picks]).detach()


def real_batch(n, g):
    ax = torch.linspace(-1, 1, 20)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    ang = 3.1416 * torch.rand(n, 1, 1, generator=g)
    off = 0.4 * torch.randn(n, 1, 1, generator=g)
    d = xx * torch.cos(ang) + yy * torch.sin(ang) - off
    return (2 * torch.exp(-(d**2) / 0.04) - 1).flatten(1)


def main(steps=400, batch=512, zdim=16):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    G, D = Generator(zdim), Critic()
    og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
    od = torch.optim.Adam(D.parameters(), lr=5e-4, betas=(0.5, 0.99))
    pool = FakePool(random.Random(0))
    for step in range(steps):
        real = real_batch(batch, g)
        fake = G(torch.randn(batch, zdim))
        pool.push(fake)
        mixed = torch.cat([fake.detach()[: batch // 2], pool.sample(batch // 2)])
        d_loss = F.softplus(-D(real)).mean() + F.softplus(D(mixed)).mean()
        od.zero_grad()
        d_loss.backward()
        od.step()

        g_loss = F.softplus(-D(fake)).mean()
        og.zero_grad()
        g_loss.backward()
        og.step()
        if step % 40 == 0 or step == steps - 1:
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"step {step} D {d_loss.item():.3f} G {g_loss.item():.3f} "
                f"mean |fake - real| {(fake.mean(0) - real.mean(0)).abs().mean().item():.3f} rss {rss:.0f} MB"
            )


if __name__ == "__main__":
    main()
