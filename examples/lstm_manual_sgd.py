"""An LSTM follows a sum of sines, trained with SGD written by hand: there is no optimizer object."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Follower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.read = nn.Linear(width, 1)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(wave)
        return self.read(hidden)


def waves(count: int, length: int, device: str) -> torch.Tensor:
    time = torch.arange(length + 1, device=device) / 6
    phase = 2 * math.pi * torch.rand(count, 1, device=device)
    return ((time + phase).sin() + 0.5 * (2 * time + phase).sin()).unsqueeze(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Follower(width=24).to(args.device)

    for step in range(args.steps):
        wave = waves(args.batch, args.length, args.device)
        loss = F.mse_loss(model(wave[:, :-1]), wave[:, 1:])
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            shrink = (args.clip / (norm + 1e-6)).clamp(max=1.0)
            for parameter in model.parameters():
                parameter -= args.lr * shrink * parameter.grad
                parameter.grad = None
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
