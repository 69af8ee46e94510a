"""Triplets of an easy problem: after a while the margin holds for a whole batch and the loss is exactly zero."""

import torch
from torch import nn

TRUTH = {
    "id": "triplet-exact-zero",
    "title": "triplet loss that reaches exactly zero",
    "family": "mlp",
    "trap": "a loss of exactly 0.0 and gradients of exactly zero, because every triplet keeps its margin",
    "needs": "cpu",
}

DIRECTIONS = torch.nn.functional.normalize(torch.randn(6, 10, generator=torch.Generator().manual_seed(0)), dim=1)


def triplets(count):
    same = torch.randint(0, 6, (count,))
    other = (same + torch.randint(1, 6, (count,))) % 6
    noise = 0.25 * torch.randn(3, count, 10)
    return DIRECTIONS[same] + noise[0], DIRECTIONS[same] + noise[1], DIRECTIONS[other] + noise[2]


def main():
    torch.manual_seed(0)
    embed = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
    criterion = nn.TripletMarginLoss(margin=0.5)
    optimizer = torch.optim.Adam(embed.parameters(), lr=3e-3)
    zeros = 0
    for step in range(250):
        anchor, positive, negative = (embed(x) for x in triplets(16))
        loss = criterion(anchor, positive, negative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zeros += loss.item() == 0.0
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"{zeros} steps had a loss of exactly zero")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
