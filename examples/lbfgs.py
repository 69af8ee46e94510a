"""L-BFGS fits a sum of two bells: each step calls the closure many times."""

import argparse

import torch
from torch import nn


class Bells(nn.Module):
    """Height, centre and width of a few bell curves."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.height = nn.Parameter(torch.ones(count))
        self.centre = nn.Parameter(torch.linspace(-1, 1, count))
        self.width = nn.Parameter(torch.full((count,), 0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bells = self.height * torch.exp(-(((x.unsqueeze(1) - self.centre) / self.width) ** 2))
        return bells.sum(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.linspace(-4, 4, args.points, device=args.device)
    y = 2.0 * torch.exp(-(((x + 1.5) / 0.8) ** 2)) + 1.2 * torch.exp(-(((x - 1.0) / 1.4) ** 2))
    y = y + args.noise * torch.randn_like(y)

    model = Bells(count=2).to(args.device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=3, line_search_fn="strong_wolfe")
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss

    for step in range(args.steps):
        loss = optimizer.step(closure)
        print(f"step {step:4d}  loss {loss.item():.6f}  closure calls {calls}", flush=True)


if __name__ == "__main__":
    main()
