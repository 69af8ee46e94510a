"""torch.compile around a plain residual network that learns which spiral a point lies on."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.shrink = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shrink(F.gelu(self.expand(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, arms: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.leave = nn.Linear(width, arms)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.leave(self.blocks(self.enter(points)))


def spirals(count: int, arms: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    arm = torch.randint(arms, (count,), device=device)
    radius = torch.rand(count, device=device)
    angle = 4 * radius + 2 * math.pi * arm / arms + 0.1 * torch.randn(count, device=device)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torch.compile(Net().to(args.device), backend=args.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        points, arm = spirals(args.batch, 3, args.device)
        loss = F.cross_entropy(model(points), arm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
