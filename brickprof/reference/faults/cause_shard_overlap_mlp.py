"""Two ranks with DistributedDataParallel read the dataset through ordinary loaders with one seed, without
DistributedSampler. Both see the same batches in the same order: twice the machines, and the same work done twice."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-shard-overlap-mlp",
    "row": None,
    "title": "no DistributedSampler",
    "family": "mlp",
    "kind": "distributed",
    "contracts": ["C-SHARD-001"],
    "root_causes": ["shard-overlap"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def dataset():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(960, 10, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long())


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    loader = DataLoader(dataset(), batch_size=32, shuffle=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
