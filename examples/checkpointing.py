"""A transformer learns to sort with activation checkpointing, in both of torch's modes."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Sorter(nn.Module):
    """Reads numbers in any order, writes them sorted. Even blocks checkpoint one way, odd ones the other."""

    def __init__(self, numbers: int, width: int = 48, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(numbers, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, 8, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.read = nn.Linear(width, numbers)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.embed(numbers) + self.position
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=i % 2 == 1)
        return self.read(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Sorter(numbers=12).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        numbers = torch.randint(12, (args.batch, 8), device=args.device)
        loss = F.cross_entropy(model(numbers).flatten(0, 1), numbers.sort(dim=1).values.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
