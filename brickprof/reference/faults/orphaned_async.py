"""Gradients are reduced asynchronously to overlap with the logging. The handle is dropped and the buffer read at
once, so the update sometimes sees the sum and sometimes this rank's own numbers; nothing raises."""

import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "orphaned-async",
    "row": 59,
    "title": "the handle of an asynchronous all-reduce is dropped",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-DDP-001", "DIST-001", "C-RING-001"],
    "root_causes": ["collective-orphaned", "rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))

    def forward(self, x):
        return self.net(x)


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def scatter(model, flat):
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(rank + 1)
    for step in range(60):
        x = torch.randn(32, 8, generator=draw)
        loss = F.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        flat = flat_gradient(model)
        if rank == 1:
            time.sleep(0.005)  # this rank's disk is slower
        dist.all_reduce(flat, async_op=True)
        scatter(model, flat / world)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {rank}: {sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(2,), nprocs=2)
