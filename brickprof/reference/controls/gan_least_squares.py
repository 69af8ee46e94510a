"""A least-squares GAN on one dimension: the generator has to move its samples to the place of the real ones."""

import torch
from torch import nn

TRUTH = {
    "id": "gan-least-squares",
    "title": "least-squares losses that settle at a constant",
    "family": "gan",
    "trap": "both losses settle at a constant above zero, which is their equilibrium",
    "needs": "cpu",
}

torch.set_num_threads(1)
torch.manual_seed(5)

generator = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
discriminator = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optim_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
optim_d = torch.optim.RMSprop(discriminator.parameters(), lr=1e-3)

for step in range(300):
    real = 2.0 + 0.5 * torch.randn(64, 1)
    noise = torch.randn(64, 1)

    for parameter in discriminator.parameters():
        parameter.requires_grad_(True)
    loss_d = (
        0.5 * (discriminator(real) - 1).pow(2).mean() + 0.5 * discriminator(generator(noise).detach()).pow(2).mean()
    )
    optim_d.zero_grad()
    loss_d.backward()
    optim_d.step()

    for parameter in discriminator.parameters():
        parameter.requires_grad_(False)
    loss_g = 0.5 * (discriminator(generator(noise)) - 1).pow(2).mean()
    optim_g.zero_grad()
    loss_g.backward()
    optim_g.step()

    if step % 60 == 0:
        with torch.no_grad():
            mean = generator(torch.randn(500, 1)).mean().item()
        print(f"step {step} D {loss_d.item():.4f} G {loss_g.item():.4f} mean of the samples {mean:.2f}")
