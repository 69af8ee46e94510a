"""A long training of a very small model that watches its own memory: `python grow.py STEPS`.

Prints one JSON line: resident bytes before anything is trained (`imported`) and at some steps (`at`).
"""

import json
import os
import sys

import torch
from torch import nn

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def main():
    steps = int(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    imported = resident()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    at = {}
    for step in range(steps):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (10, steps // 10, steps // 4, steps // 2, 3 * steps // 4, steps - 1):
            at[step] = resident()
    print(json.dumps({"imported": imported, "at": at, "loss": loss.item()}))


if __name__ == "__main__":
    main()
