TRUTH = {"id": "blind7-b31-hinge-gan", "title": "healthy hinge GAN on a ring of gaussians with an R1 penalty, TTUR and an EMA generator", "family": "gan", "needs": "cpu",
         "trap": "losses do not fall, the generator loss may rise, betas (0, 0.9), double backward, two optimizers, fakes are detached for the critic"}
import copy, math, torch
import torch.nn as nn

torch.manual_seed(1)
MODES = 8


def real(n):
    k = torch.randint(0, MODES, (n,)).float() * 2 * math.pi / MODES
    return torch.stack([k.cos(), k.sin()], 1) * 2.0 + 0.15 * torch.randn(n, 2)


G = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
G_avg = copy.deepcopy(G).requires_grad_(False)
og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.9))
od = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.0, 0.9))


@torch.no_grad()
def quality(net):
    x = net(torch.randn(1000, 8))
    k = torch.arange(MODES).float() * 2 * math.pi / MODES
    c = torch.stack([k.cos(), k.sin()], 1) * 2.0
    d, i = torch.cdist(x, c).min(1)
    good = d < 0.5
    return good.float().mean().item(), i[good].unique().numel()


for step in range(550):
    x, fake = real(128).requires_grad_(), G(torch.randn(128, 8))
    sx = D(x)
    pen = torch.autograd.grad(sx.sum(), x, create_graph=True)[0].pow(2).sum(1).mean()
    ld = torch.relu(1 - sx).mean() + 0.05 * pen + torch.relu(1 + D(fake.detach())).mean()
    od.zero_grad(); ld.backward(); od.step()
    D.requires_grad_(False)
    lg = -D(G(torch.randn(128, 8))).mean()
    og.zero_grad(); lg.backward(); og.step()
    D.requires_grad_(True)
    with torch.no_grad():
        for a, p in zip(G_avg.parameters(), G.parameters()):
            a.lerp_(p, 0.03)
    if step % 50 == 49:
        q, m = quality(G_avg)
        print(f"{step + 1} d {ld.item():.3f} g {lg.item():.3f} on-mode {q:.2f} modes {m}")
