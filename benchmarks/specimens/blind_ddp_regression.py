import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TRUTH = {
    "id": "blind-ddp-regression",
    "row": 57,
    "title": "the training step runs the unwrapped module instead of the DDP wrapper, so gradients are never averaged and the ranks drift apart",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced", "rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.f(x).squeeze(-1)

    def loss(self, x, y):
        return nn.functional.mse_loss(self(x), y)


def unwrap(m):
    return m.module if hasattr(m, "module") else m


def dataset():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 10, generator=g)
    y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] + 0.3 * x[:, 3:].sum(1) + 0.1 * torch.randn(1024, generator=g)
    return TensorDataset(x, y)


def worker(rank, world, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ds = dataset()
    sampler = DistributedSampler(ds, world, rank, shuffle=True, seed=1)
    loader = DataLoader(ds, batch_size=32, sampler=sampler)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(1)
        for x, y in loader:
            loss = unwrap(model).loss(x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world / len(loader):.4f}", flush=True)
    checksum = torch.stack([p.detach().double().norm() for p in model.parameters()]).sum()
    print(f"rank {rank} weights {checksum.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, free_port()), nprocs=2)
