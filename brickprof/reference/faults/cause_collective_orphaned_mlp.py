"""To overlap communication the gradients are reduced with async_op=True, and the handles are thrown away. The
optimizer reads the gradients before the sums have arrived: sometimes local, sometimes reduced, sometimes half and
half."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TRUTH = {
    "id": "cause-collective-orphaned-mlp",
    "row": None,
    "title": "asynchronous reductions are never waited for",
    "family": "mlp",
    "kind": "distributed",
    "contracts": ["C-RING-001", "C-DDP-001", "DIST-001"],
    "root_causes": ["collective-orphaned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Averager:
    def __init__(self, model, world):
        self.parameters = list(model.parameters())
        self.world = world

    def start(self):
        for parameter in self.parameters:
            parameter.grad.div_(self.world)
            dist.all_reduce(parameter.grad, async_op=True)


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    averager = Averager(model, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(10 + rank)
    for step in range(60):
        x = torch.randn(16, 64)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        averager.start()
        optimizer.step()
        if step % 15 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f} w {model[4].weight.sum().item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
