"""A GAN learns a ring of points: two models, two optimizers, two losses a step."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Generator(nn.Module):
    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.lift = nn.Linear(noise, width)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.place = nn.Linear(width, 2)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.place(self.body(self.lift(noise)))


class Discriminator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.look = nn.Linear(2, width)
        self.body = nn.Sequential(nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2))
        self.judge = nn.Linear(width, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.judge(self.body(self.look(points))).squeeze(1)


def ring(count: int, device: str) -> torch.Tensor:
    angle = 2 * math.pi * torch.rand(count, device=device)
    radius = 1 + 0.05 * torch.randn(count, device=device)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--noise", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = Generator(args.noise, width=64).to(args.device)
    discriminator = Discriminator(width=64).to(args.device)
    paint = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.99))
    judge = torch.optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.99))

    for step in range(args.steps):
        real = ring(args.batch, args.device)
        fake = generator(torch.randn(args.batch, args.noise, device=args.device))

        judge.zero_grad()
        told_real, told_fake = discriminator(real), discriminator(fake.detach())
        judge_loss = F.softplus(-told_real).mean() + F.softplus(told_fake).mean()
        judge_loss.backward()
        judge.step()

        paint.zero_grad()
        paint_loss = F.softplus(-discriminator(fake)).mean()
        paint_loss.backward()
        paint.step()

        if step % 25 == 0 or step == args.steps - 1:
            off = (fake.norm(dim=1) - 1).abs().mean().item()
            print(
                f"step {step:4d}  judge {judge_loss.item():.6f}  paint {paint_loss.item():.6f}"
                f"  off the ring by {off:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
