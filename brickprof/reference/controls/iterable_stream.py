"""An endless stream of samples through an IterableDataset; nothing is ever seen twice and there are no epochs."""

import itertools
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

TRUTH = {
    "id": "iterable-stream",
    "title": "endless IterableDataset without a sampler",
    "family": "mlp",
    "trap": "the loader cannot shuffle and has no length, and the data is random by itself",
    "needs": "cpu",
}


class Sums(IterableDataset):
    """Which of two sums is larger."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        rng = random.Random(self.seed)
        while True:
            numbers = [rng.uniform(-1, 1) for _ in range(8)]
            yield torch.tensor(numbers), torch.tensor(float(sum(numbers[:4]) > sum(numbers[4:])))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Hardswish(), nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
    criterion = nn.BCEWithLogitsLoss()
    for step, (x, y) in enumerate(itertools.islice(DataLoader(Sums(1), batch_size=32), 250)):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{step} {loss.item():.4f}")


if __name__ == "__main__":
    main()
