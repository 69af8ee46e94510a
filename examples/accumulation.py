"""Gradient accumulation: four micro-batches make one update of a majority-vote classifier."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def votes(count: int, voters: int) -> TensorDataset:
    """Rows of +1 and -1; the label says which side holds the majority."""
    ballots = torch.randint(0, 2, (count, voters)).float() * 2 - 1
    return TensorDataset(ballots, (ballots.sum(1) > 0).long())


class Majority(nn.Module):
    def __init__(self, voters: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(voters, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def forward(self, ballots: torch.Tensor) -> torch.Tensor:
        return self.layers(ballots)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = votes(args.updates * args.accumulate * args.micro_batch, voters=21)
    loader = DataLoader(data, batch_size=args.micro_batch, shuffle=True)
    model = Majority(voters=21, width=48).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    total = 0.0
    for i, (ballots, winner) in enumerate(loader):
        logits = model(ballots.to(args.device))
        loss = F.cross_entropy(logits, winner.to(args.device)) / args.accumulate
        loss.backward()
        total += loss.item()
        if (i + 1) % args.accumulate:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        update = i // args.accumulate
        if update % 10 == 0 or update == args.updates - 1:
            print(f"update {update:3d}  loss {total:.6f}", flush=True)
        total = 0.0


if __name__ == "__main__":
    main()
