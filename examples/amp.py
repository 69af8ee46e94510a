"""Mixed precision with a gradient scaler that starts too high: the first steps are skipped, rightly."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Regressor(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x).relu()
        for layer in self.hidden:
            x = x + layer(x).relu()
        return self.leave(x).squeeze(1)


def surface(count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 8, device=device)
    return x, (2 * x[:, 0]).sin() + x[:, 1] * x[:, 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--init-scale", type=float, default=2.0**21)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Regressor(width=64).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(args.device, init_scale=args.init_scale, growth_interval=500)

    skipped = 0
    for step in range(args.steps):
        x, y = surface(args.batch, args.device)
        with torch.amp.autocast(args.device, dtype=torch.float16):
            prediction = model(x)
            loss = F.mse_loss(prediction.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
        if step % 10 == 0 or step == args.steps - 1:
            print(
                f"step {step:4d}  loss {loss.item():.6f}  scale {scaler.get_scale():.0f}  skipped {skipped}",
                flush=True,
            )


if __name__ == "__main__":
    main()
