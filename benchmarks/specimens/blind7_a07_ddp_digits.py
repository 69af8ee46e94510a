"""Data-parallel training of a small convnet on glyph images, two gloo ranks."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "blind7-a07-ddp-digits",
    "row": None,
    "title": "the training step calls ddp.module(...), which bypasses the reducer: each rank trains on its own gradients",
    "family": "cnn",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced", "rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

WORLD = 2


def glyphs(n, seed=1):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(77))
    y = torch.randint(0, 10, (n,), generator=g)
    return proto[y] * 0.6 + torch.randn(n, 1, 12, 12, generator=g), y


class GlyphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.conv = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.fc = nn.Linear(24 * 36, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.conv(x))
        return self.fc(x.flatten(1))

    def loss(self, x, y):
        return F.cross_entropy(self(x), y, label_smoothing=0.05)


class DistributedTrainer:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(100)
        self.model = DistributedDataParallel(GlyphNet())
        data = TensorDataset(*glyphs(2560))
        self.sampler = DistributedSampler(data, WORLD, rank, shuffle=True)
        self.loader = DataLoader(data, batch_size=32, sampler=self.sampler)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1.5e-3)

    def training_step(self, batch):
        x, y = batch
        loss = self.model.module.loss(x, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self, epochs=3):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            losses = [self.training_step(b) for b in self.loader]
            mean = torch.tensor(sum(losses) / len(losses))
            dist.all_reduce(mean)
            if self.rank == 0:
                print(f"epoch {epoch} loss {mean.item() / WORLD:.4f}", flush=True)
        print(f"rank {self.rank} weight norm {self.model.module.fc.weight.norm().item():.6f}", flush=True)


def worker(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    DistributedTrainer(rank).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free_port = s.getsockname()[1]
    mp.spawn(worker, args=(free_port,), nprocs=WORLD)
