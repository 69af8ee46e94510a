"""DistributedDataParallel with gradient accumulation. The test for the last micro-batch can never be true, so every
backward runs inside ``no_sync`` and the ranks train alone."""

import contextlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "ddp-always-no-sync",
    "row": 57,
    "title": "DDP never synchronises: every backward runs inside no_sync",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-DDP-001", "DIST-001"],
    "root_causes": ["gradient-not-reduced", "rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.enter = nn.Linear(12, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.leave = nn.Linear(width, 3)

    def forward(self, x):
        x = F.gelu(self.enter(x))
        return self.leave(x + self.body(x))


def data(count):
    x = torch.randn(count, 12, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())


def train(rank, world, accumulation=2):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    rows = data(3840)
    loader = DataLoader(rows, batch_size=16, sampler=DistributedSampler(rows, world, rank))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for micro, (x, label) in enumerate(loader):
        last = micro % accumulation == accumulation
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x), label) / accumulation
            loss.backward()
        if (micro + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0 and micro % 20 == 0:
            print(f"micro-batch {micro} loss {loss.item() * accumulation:.4f}", flush=True)
    norm = sum(p.detach().norm() for p in model.parameters())
    print(f"rank {rank}: sum of norms {norm.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(2,), nprocs=2)


if __name__ == "__main__":
    main()
