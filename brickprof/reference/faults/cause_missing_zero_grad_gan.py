"""A GAN on a ring of points. The discriminator's gradients are never zeroed: the generator's backward leaves its own
part in them, and the next discriminator update applies it, turned against its aim."""

from itertools import pairwise

import torch
from torch import nn

TRUTH = {
    "id": "cause-missing-zero-grad-gan",
    "row": None,
    "title": "the discriminator's gradients are never zeroed",
    "family": "gan",
    "kind": "silent",
    "contracts": ["C-GA-001"],
    "root_causes": ["missing-zero-grad"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}


def mlp(*sizes):
    layers = []
    for a, b in pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def ring(count):
    angle = torch.rand(count) * 2 * torch.pi
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(count, 2)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator, discriminator = mlp(8, 48, 48, 2), mlp(2, 48, 48, 1)
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    for step in range(200):
        real, fake = ring(64), generator(torch.randn(64, 8))
        d_loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
        d_loss.backward()
        opt_d.step()

        opt_g.zero_grad()
        g_loss = bce(discriminator(fake), ones)
        g_loss.backward()
        opt_g.step()
        if step % 20 == 0:
            size = sum(p.grad.pow(2).sum() for p in discriminator.parameters()).sqrt()
            print(f"{step:4d} D {d_loss.item():.3f} G {g_loss.item():.3f} |gD| {size.item():.2f}")


if __name__ == "__main__":
    main()
