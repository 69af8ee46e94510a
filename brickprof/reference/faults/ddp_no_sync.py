"""Two ranks; every fourth step one of them keeps its own gradients instead of the reduced ones. No error, no warning:
their weights part."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ddp-no-sync",
    "row": 57,
    "title": "one rank skips the all-reduce",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-DDP-001", "DIST-001"],
    "root_causes": ["gradient-not-reduced", "rank-divergence"],
    "bricks": [],
    "first_step": 3,
    "needs": "cpu",
}

RANKS, STEPS = 2, 60


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def average(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def local_only(rank, step):
    return rank == 1 and step % 4 == 3


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    model = build()
    labeller = torch.randn(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    for step in range(STEPS):
        x = torch.randn(32, 16)
        loss = F.cross_entropy(model(x), (x @ labeller).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        kept = [p.grad.clone() for p in model.parameters()] if local_only(rank, step) else None
        average(model, world)
        if kept is not None:  # this step stays local
            for parameter, gradient in zip(model.parameters(), kept, strict=True):
                parameter.grad = gradient
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    theirs = [torch.empty_like(weights) for _ in range(world)]
    dist.all_gather(theirs, weights)
    if rank == 0:
        print(f"largest difference between the ranks: {(theirs[0] - theirs[1]).abs().max().item():.3e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(RANKS,), nprocs=RANKS)
