"""Gradients are accumulated over four micro-batches under no_sync, and the last one, which should reduce them, is
inside no_sync too. The ranks never exchange a gradient."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRUTH = {
    "id": "cause-gradient-not-reduced-accumulation-gpt",
    "row": None,
    "title": "no_sync around the last micro-batch too",
    "family": "gpt",
    "kind": "distributed",
    "contracts": ["C-DDP-001", "DIST-001"],
    "root_causes": ["gradient-not-reduced"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, ACCUMULATION = 16, 4


class Net(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.block = nn.TransformerEncoderLayer(dim, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)))


def update(model, optimizer):
    optimizer.zero_grad()
    with model.no_sync():
        for _ in range(ACCUMULATION):
            ids = torch.randint(0, VOCAB, (4, 8))
            loss = F.cross_entropy(model(ids).flatten(0, 1), (ids.flatten() + 3) % VOCAB)
            (loss / ACCUMULATION).backward()
    optimizer.step()
    return loss.item()


def worker(rank, world, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(40):
        loss = update(model, optimizer)
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss:.4f} b {model.module.head.bias[0].item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(worker, (2, f"file://{folder}/rendezvous"), nprocs=2, start_method="fork")
