import math
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"id": "blind-ring-gan-f", "title": "non-saturating GAN with R1 penalty on a ring", "family": "gan", "needs": "cpu",
           "trap": "two optimizers, both losses hover, the generator's gradients pass through a discriminator that must not step"}


def real(n):
    a = 2 * math.pi * torch.rand(n)
    r = 1 + 0.08 * torch.randn(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1)


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def r1(d, x):
    x = x.detach().requires_grad_(True)
    (g,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)
    return g.pow(2).sum(1).mean()


def requires(net, flag):
    for p in net.parameters():
        p.requires_grad_(flag)


def main(steps=600, batch=128, zdim=8):
    torch.manual_seed(1)
    G, D = mlp(zdim, 2), mlp(2, 1)
    og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
    od = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))
    for step in range(1, steps + 1):
        requires(D, True)
        x = real(batch)
        with torch.no_grad():
            fake = G(torch.randn(batch, zdim))
        ld = F.softplus(-D(x)).mean() + F.softplus(D(fake)).mean()
        if step % 4 == 0:
            ld = ld + 0.2 * r1(D, x)
        od.zero_grad()
        ld.backward()
        od.step()

        requires(D, False)
        lg = F.softplus(-D(G(torch.randn(batch, zdim)))).mean()
        og.zero_grad()
        lg.backward()
        og.step()
        if step % 50 == 0:
            with torch.no_grad():
                r = G(torch.randn(512, zdim)).norm(dim=1)
            print(f"{step} D {ld.item():.3f} G {lg.item():.3f} radius {r.mean():.3f} +- {r.std():.3f}")


if __name__ == "__main__":
    main()
