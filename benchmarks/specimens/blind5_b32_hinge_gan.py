import math

import torch
import torch.nn as nn

TRUTH = {
    "id": "blind5-b32-hinge-gan",
    "title": "hinge GAN on a square of four Gaussians, two critic steps per generator step, EMA generator",
    "family": "gan",
    "needs": "cpu",
    "trap": "losses do not fall, the critic is frozen during the generator step, betas (0, 0.9), EMA copy never gets gradients",
}

torch.manual_seed(5)
Z = 8


def real(n):
    a = math.pi / 4 + math.pi / 2 * torch.randint(0, 4, (n,))
    return 1.5 * torch.stack([a.cos(), a.sin()], 1) + 0.25 * torch.randn(n, 2)


G = nn.Sequential(nn.Linear(Z, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 2))
D = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96),
                  nn.LeakyReLU(0.2), nn.Linear(96, 1))
ema = torch.optim.swa_utils.AveragedModel(G, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
og = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.0, 0.9))
od = torch.optim.Adam(D.parameters(), lr=4e-3, betas=(0.0, 0.9))


def report(it, ld, lg):
    with torch.no_grad():
        x, r = ema(torch.randn(2000, Z)), real(2000)
    gap = 2 * torch.cdist(x, r).mean() - torch.cdist(x, x).mean() - torch.cdist(r, r).mean()
    a = math.pi / 4 + math.pi / 2 * torch.arange(4)
    centers = 1.5 * torch.stack([a.cos(), a.sin()], 1)
    d, k = torch.cdist(x, centers).min(1)
    good = d < 0.75
    print(f"{it:4d} D {ld:.3f} G {lg:.3f} near a mode {good.float().mean():.2f} modes {k[good].unique().numel()} energy distance {gap:.4f}")


for it in range(1, 191):
    for _ in range(2):
        x = real(256)
        with torch.no_grad():
            f = G(torch.randn(256, Z))
        ld = torch.relu(1 - D(x)).mean() + torch.relu(1 + D(f)).mean()
        od.zero_grad()
        ld.backward()
        od.step()
    D.requires_grad_(False)
    lg = -D(G(torch.randn(256, Z))).mean()
    og.zero_grad()
    lg.backward()
    og.step()
    D.requires_grad_(True)
    ema.update_parameters(G)
    if it % 19 == 0:
        report(it, ld.item(), lg.item())
