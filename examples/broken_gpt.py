"""The GPT of gpt.py, spoiled the way real runs are.

Somebody took out the layer norms "to save time" and forgot the clipping, and the warm-up climbs to a
learning rate that nothing can hold. All goes well for a while.
"""

import argparse

import torch
import torch.nn.functional as F
from gpt import GPT, Sums
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Sums(args.length, seed=0), batch_size=args.batch, shuffle=True, drop_last=True)
    model = GPT(args.length, layers=6, dropout=0.0)
    for block in model.blocks:
        block.norm1 = block.norm2 = nn.Identity()
    model.norm = nn.Identity()
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / args.warmup, total_iters=args.warmup)

    for step, (ids, targets) in zip(range(args.steps), loader, strict=False):
        ids, targets = ids.to(args.device), targets.to(args.device)
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        steepest = torch.stack([parameter.grad.abs().max() for parameter in model.parameters()]).max()
        print(f"step {step:4d}  loss {loss.item():.6g}  steepest {steepest.item():.3g}", flush=True)
        optimizer.step()
        warmup.step()


if __name__ == "__main__":
    main()
