"""A hand-made ring all-reduce in which every rank first receives from its left and then sends to its right. With two
ranks left and right are the same: both wait for a message that nobody has sent."""

import datetime
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ring-deadlock",
    "row": 61,
    "title": "both ranks of a ring receive before they send",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-RING-001", "DIST-001", "C-PROCESS-001"],
    "root_causes": ["deadlock", "collective-mismatch", "hung"],
    "bricks": [],
    "first_step": 8,
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.outer = nn.Linear(32, 3)

    def forward(self, x):
        return self.outer(self.inner(x))


class Ring:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.group = dist.new_group(timeout=datetime.timedelta(seconds=5))
        self.left, self.right = (rank - 1) % world, (rank + 1) % world

    def mean(self, flat):
        total, passing = flat.clone(), flat.clone()
        for _ in range(self.world - 1):
            received = torch.empty_like(passing)
            dist.recv(received, src=self.left, group=self.group)
            dist.send(passing, dst=self.right, group=self.group)
            total, passing = total + received, received
        return total / self.world


def train(rank, world, local_steps=8):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, ring = Net(), Ring(rank, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        x = torch.randn(24, 6)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        if step >= local_steps:  # the first steps warm up on their own
            flat = ring.mean(torch.cat([p.grad.flatten() for p in model.parameters()]))
            for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
                p.grad = part.view_as(p)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(2,), nprocs=2)
