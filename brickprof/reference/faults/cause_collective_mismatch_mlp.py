"""Every ten steps rank 0 averages the loss for its log, and only rank 0: the extra all_reduce stands inside `if rank
== 0`. Its partner is already at the next gradient, the two exchange tensors that do not belong together, and the
group breaks."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TRUTH = {
    "id": "cause-collective-mismatch-mlp",
    "row": None,
    "title": "an all_reduce on one rank only",
    "family": "mlp",
    "kind": "distributed",
    "contracts": ["C-RING-001", "C-DDP-001"],
    "root_causes": ["collective-mismatch"],
    "bricks": [],
    "first_step": 9,
    "needs": "cpu",
    "run": ["--hang", "4"],
}


def reduce_gradients(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(world)


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=8))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for step in range(60):
        x = torch.randn(32, 6)
        loss = nn.functional.mse_loss(model(x), x[:, :1].sin())
        optimizer.zero_grad()
        loss.backward()
        reduce_gradients(model, world)
        optimizer.step()
        if step % 10 == 9 and rank == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            print(f"step {step} loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
