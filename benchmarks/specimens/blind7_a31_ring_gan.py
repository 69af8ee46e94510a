import math
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind7-a31-ring-gan", "title": "healthy GAN on a ring of Gaussians with R1 penalty and an averaged generator", "family": "gan",
         "needs": "cpu", "trap": "losses oscillate around ln 2 and do not fall; two optimizers; generator gradients come through the critic"}

torch.manual_seed(0)


def ring(n):
    a = torch.randint(0, 4, (n,)) * (math.pi / 2)
    return torch.stack([a.cos(), a.sin()], 1) + 0.2 * torch.randn(n, 2)


def mlp(i, o, h=96):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


G, D = mlp(4, 2), mlp(2, 1)
ema = torch.optim.swa_utils.AveragedModel(G, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
og = torch.optim.Adam(G.parameters(), 2e-3, betas=(0.5, 0.99))
od = torch.optim.Adam(D.parameters(), 2e-3, betas=(0.5, 0.99))

for step in range(300):
    real = ring(256).requires_grad_(True)
    fake = G(torch.randn(256, 4)).detach()
    score = D(real)
    grad, = torch.autograd.grad(score.sum(), real, create_graph=True)
    d_loss = F.softplus(-score).mean() + F.softplus(D(fake)).mean() + 0.02 * grad.pow(2).sum(1).mean()
    od.zero_grad(); d_loss.backward(); od.step()

    D.requires_grad_(False)
    g_loss = F.softplus(-D(G(torch.randn(256, 4)))).mean()
    og.zero_grad(); g_loss.backward(); og.step()
    D.requires_grad_(True)
    ema.update_parameters(G)
    if step % 50 == 49:
        print(f"{step + 1}: D {d_loss.item():.3f} G {g_loss.item():.3f}")

ema.eval()
with torch.no_grad():
    s = ema(torch.randn(3000, 4))
    modes = torch.stack([torch.tensor([math.cos(k * math.pi / 2), math.sin(k * math.pi / 2)]) for k in range(4)])
    dist, which = torch.cdist(s, modes).min(1)
    print("close to a mode", (dist < 0.6).float().mean().item(), "share per mode", torch.bincount(which, minlength=4).tolist())
