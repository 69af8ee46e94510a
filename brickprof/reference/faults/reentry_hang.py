"""After each step one rank shares its loss and then the norm, the other the norm and then the loss. The collectives
have different sizes and kinds, no rank gets what it waits for, and the run stands still until the time limit."""

import datetime
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "reentry-hang",
    "row": 60,
    "title": "two ranks call their collectives in a different order",
    "family": "other",
    "kind": "distributed",
    "contracts": ["DIST-001", "C-RING-001", "C-DDP-001", "C-PROCESS-001"],
    "root_causes": ["collective-mismatch", "deadlock", "hung"],
    "bricks": [],
    "first_step": 10,
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 2))

    def forward(self, x):
        return self.layers(x)


def average(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def report(rank, step, loss, model, group):
    """The mean loss and rank 0's norms, for the log."""
    norms = torch.stack([p.grad.norm() for p in model.parameters()])
    shared = loss.detach().clone()
    if rank == 0:
        dist.all_reduce(shared, group=group)
        dist.broadcast(norms, src=0, group=group)
        print(f"step {step} loss {shared.item() / 2:.4f} norm {norms.norm().item():.4f}", flush=True)
    else:
        dist.broadcast(norms, src=0, group=group)
        dist.all_reduce(shared, group=group)


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    logs = dist.new_group(timeout=datetime.timedelta(seconds=5))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        x = torch.randn(32, 10)
        loss = F.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        optimizer.zero_grad()
        loss.backward()
        average(model, world)
        optimizer.step()
        if step and step % 10 == 0:
            report(rank, step, loss, model, logs)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(2,), nprocs=2)
