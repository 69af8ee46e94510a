"""DistributedDataParallel over a DataLoader that shuffles with the same seed on both ranks and has no distributed
sampler: both ranks read the same batches, and half of the work is done twice."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "shard-duplicated",
    "row": 58,
    "title": "both ranks read the same samples: no DistributedSampler",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-SHARD-001"],
    "root_causes": ["shard-overlap"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(8 * 16, 5)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def pictures(count):
    draw = torch.Generator().manual_seed(1)
    shapes = torch.randn(5, 1, 8, 8, generator=draw)
    label = torch.randint(5, (count,), generator=draw)
    return TensorDataset(shapes[label] + torch.randn(count, 1, 8, 8, generator=draw), label)


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(42)
    loader = DataLoader(pictures(960), batch_size=16, shuffle=True)
    model = DistributedDataParallel(Cnn())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        total = 0.0
        for x, label in loader:
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"rank {rank} epoch {epoch} loss {total / len(loader):.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(2,), nprocs=2)
