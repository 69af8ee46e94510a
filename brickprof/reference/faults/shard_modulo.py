"""Files are dealt to the ranks with a modulo that is one too large and a comparison in place of an equality. Some
files are read by both ranks, and others by nobody."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRUTH = {
    "id": "shard-modulo",
    "row": 58,
    "title": "a modulo mistake deals some shards to both ranks",
    "family": "other",
    "kind": "distributed",
    "contracts": ["C-SHARD-001"],
    "root_causes": ["shard-overlap"],
    "bricks": [],
    "first_step": 12,
    "needs": "cpu",
}

FILES, BATCHES, VOCAB = 6, 12, 24


class Bigrams(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, VOCAB))

    def forward(self, ids):
        return self.mlp(self.embed(ids))


def read(number):
    draw = torch.Generator().manual_seed(900 + number)
    for _ in range(BATCHES):
        ids = torch.randint(VOCAB, (32,), generator=draw)
        yield ids, (5 * ids + 3) % VOCAB


def mine(rank, world):
    return [number for number in range(FILES) if rank <= number % (world + 1)][: FILES // world]


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Bigrams())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    files = mine(rank, world)
    print(f"rank {rank} reads files {files}", flush=True)
    for epoch in range(2):
        for number in files:
            for ids, targets in read(number):
                loss = F.cross_entropy(model(ids), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
    mp.spawn(train, args=(2,), nprocs=2)
