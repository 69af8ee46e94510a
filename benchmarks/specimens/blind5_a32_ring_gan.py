import math
import torch
from torch import nn

TRUTH = {"id": "blind5-a32-ring-gan", "title": "non-saturating GAN with R1 on a ring of eight Gaussians, EMA generator",
           "family": "gan", "needs": "cpu",
           "trap": "neither loss goes down, detached fakes, double backward of the penalty, two optimizers, discriminator grads left by the generator step and zeroed before use"}

torch.manual_seed(77)


def real(n):
    k = torch.randint(0, 8, (n,)).float() * math.pi / 4
    return torch.stack([k.cos(), k.sin()], 1) * 1.5 + 0.08 * torch.randn(n, 2)


def mlp(i, o, h=96):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


@torch.no_grad()
def quality(gen):
    x = gen(torch.randn(2000, 8))
    ang = torch.arange(8).float() * math.pi / 4
    c = torch.stack([ang.cos(), ang.sin()], 1) * 1.5
    d, near = torch.cdist(x, c).min(1)
    good = d < 0.3
    share = torch.bincount(near[good], minlength=8).float() / len(x)
    return good.float().mean().item(), int((share > 0.02).sum())


G, D = mlp(8, 2), mlp(2, 1)
G_ema = mlp(8, 2)
G_ema.load_state_dict(G.state_dict())
G_ema.requires_grad_(False)
g_opt = torch.optim.Adam(G.parameters(), lr=3e-3, betas=(0.5, 0.99))
d_opt = torch.optim.Adam(D.parameters(), lr=3e-3, betas=(0.5, 0.99))
sp = nn.functional.softplus
ITERS = 300

for it in range(ITERS):
    x = real(256).requires_grad_(True)
    with torch.no_grad():
        fake = G(torch.randn(256, 8))
    out = D(x)
    (gx,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    d_loss = sp(-out).mean() + sp(D(fake)).mean() + 0.05 * gx.pow(2).sum(1).mean()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()

    g_loss = sp(-D(G(torch.randn(256, 8)))).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    with torch.no_grad():
        for e, p in zip(G_ema.parameters(), G.parameters()):
            e.lerp_(p, 0.05)
    if it % 50 == 49:
        q, modes = quality(G_ema)
        print(f"{it + 1:4d} D {d_loss.item():.3f} G {g_loss.item():.3f} near-mode {q:.2f} modes {modes}/8")
