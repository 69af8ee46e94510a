"""A GAN with the non-saturating loss draws a mixture of four points. Both losses hover; neither falls to zero."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "gan-nonsaturating",
    "title": "two players, two optimizers, non-saturating loss",
    "family": "gan",
    "trap": "losses that hover near ln 2 for ever; gradients of one model flow through the other and are thrown away",
    "needs": "cpu",
}


def mlp(inputs, outputs, width=48):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def real(count):
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    return corners[torch.randint(0, 4, (count,))] + 0.1 * torch.randn(count, 2)


def main(steps=250, size=64):
    torch.manual_seed(0)
    generator, discriminator = mlp(4, 2), mlp(2, 1)
    g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    d_opt = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(size, 1), torch.zeros(size, 1)
    for step in range(steps):
        fake = generator(torch.randn(size, 4))
        d_opt.zero_grad()
        d_loss = F.binary_cross_entropy_with_logits(discriminator(real(size)), ones)
        d_loss = d_loss + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        d_loss.backward()
        d_opt.step()

        g_opt.zero_grad()
        g_loss = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        g_loss.backward()
        g_opt.step()
        if step % 50 == 0:
            print(f"{step:4d}  D {d_loss.item():.3f}  G {g_loss.item():.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
