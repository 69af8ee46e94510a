"""Two ranks average their gradients by hand with all_reduce. Each seeds itself with its rank before the model is
built and nobody broadcasts the weights: the ranks apply the same gradients to two different models."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TRUTH = {
    "id": "cause-rank-divergence-seed-mlp",
    "row": None,
    "title": "ranks start from different weights",
    "family": "mlp",
    "kind": "distributed",
    "contracts": ["DIST-001", "C-DDP-001"],
    "root_causes": ["rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def average_gradients(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(80):
        x = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(x), x[:, :1] - x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if step % 20 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f} w {model[0].weight[0, 0].item():.4f}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
