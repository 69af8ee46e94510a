import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"id": "blind6-e31-ring-gan", "title": "non-saturating GAN on a ring of Gaussians with R1 penalty, alternating steps, EMA generator", "family": "gan", "needs": "cpu",
         "trap": "losses hover around ln 2 and 2 ln 2 or rise; the critic is frozen during the generator step; second-order gradients; beta1 0.5"}

torch.manual_seed(6)
Z = 8


def real(n):
    a = torch.randint(0, 8, (n,)) * (torch.pi / 4)
    return torch.stack([a.cos(), a.sin()], 1) + 0.08 * torch.randn(n, 2)


G = nn.Sequential(nn.Linear(Z, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
ema = torch.optim.swa_utils.AveragedModel(G, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.96), use_buffers=True)
og = torch.optim.Adam(G.parameters(), lr=4e-3, betas=(0.5, 0.9))
od = torch.optim.Adam(D.parameters(), lr=5e-3, betas=(0.5, 0.9))


def quality(model, n=1000):
    model.eval()
    with torch.no_grad():
        s = model(torch.randn(n, Z))
    model.train()
    a = torch.arange(8) * (torch.pi / 4)
    d = torch.cdist(s, torch.stack([a.cos(), a.sin()], 1))
    near = d.min(1)
    return (near.values < 0.25).float().mean().item(), near.indices[near.values < 0.25].unique().numel()


for it in range(600):
    if it % 2 == 0:
        with torch.no_grad():
            fake = G(torch.randn(128, Z))
        x = real(128).requires_grad_()
        dr = D(x)
        (gx,) = torch.autograd.grad(dr.sum(), x, create_graph=True)
        loss_d = F.softplus(-dr).mean() + F.softplus(D(fake)).mean() + 0.01 * gx.square().sum(1).mean()
        od.zero_grad()
        loss_d.backward()
        od.step()
    else:
        D.requires_grad_(False)
        loss_g = F.softplus(-D(G(torch.randn(128, Z)))).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()
        D.requires_grad_(True)
        ema.update_parameters(G)
    if it % 100 == 99:
        good, modes = quality(ema)
        print(f"{it + 1} D {loss_d.item():.3f} G {loss_g.item():.3f} near a mode {good:.2f} modes {modes}")
