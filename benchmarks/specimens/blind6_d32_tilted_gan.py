import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-d32-tilted-gan",
    "title": "healthy GAN with R1 penalty on a tilted cloud of points, EMA of the generator",
    "family": "gan",
    "needs": "cpu",
    "trap": "two optimizers, losses hover near ln 2 and do not fall, betas (0, 0.9), double backward, a frozen EMA copy",
}
TILT = torch.tensor([[0.9, 0.5], [-0.3, 0.4]])
SHIFT = torch.tensor([1.0, -0.5])


def real(n):
    return torch.randn(n, 2) @ TILT + SHIFT


def mlp(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def r1(disc, x):
    x = x.detach().requires_grad_(True)
    (g,) = torch.autograd.grad(disc(x).sum(), x, create_graph=True)
    return g.square().sum(1).mean()


@torch.no_grad()
def moments_error(gen):
    x = gen(torch.randn(2000, 4))
    return (x.mean(0) - SHIFT).norm().item(), (torch.cov(x.t()) - TILT.t() @ TILT).norm().item()


torch.manual_seed(6)
gen, disc, ema = mlp(4, 2), mlp(2, 1), mlp(4, 2)
ema.load_state_dict(gen.state_dict())
ema.requires_grad_(False)
og = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.0, 0.9))
od = torch.optim.Adam(disc.parameters(), lr=4e-3, betas=(0.0, 0.9))
ROUNDS, N = 300, 128
sg, sd = (torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=ROUNDS) for o in (og, od))
for it in range(ROUNDS):
    x = real(N)
    with torch.no_grad():
        f = gen(torch.randn(N, 4))
    ld = F.softplus(disc(f)).mean() + F.softplus(-disc(x)).mean() + 0.1 * r1(disc, x)
    od.zero_grad()
    ld.backward()
    od.step()
    disc.requires_grad_(False)
    lg = F.softplus(-disc(gen(torch.randn(N, 4)))).mean()
    og.zero_grad()
    lg.backward()
    og.step()
    disc.requires_grad_(True)
    sg.step()
    sd.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), gen.parameters()):
            e.lerp_(p, 0.03)
    if (it + 1) % 30 == 0:
        m, c = moments_error(ema)
        print(f"round {it + 1} disc {ld.item():.3f} gen {lg.item():.3f} mean error {m:.3f} cov error {c:.3f}")
