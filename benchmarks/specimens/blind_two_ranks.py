"""Sequence tagging with DistributedDataParallel on two CPU processes."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TRUTH = {
    "id": "blind-two-ranks",
    "title": "bidirectional GRU tagger with padding, DDP over gloo, evaluation on rank 0 between barriers",
    "family": "lstm",
    "needs": "cpu",
    "trap": "rank 1 waits while rank 0 evaluates; ignore_index for padding; small batch per rank",
}

VOCAB, TAGS, LEN, WORLD = 60, 5, 18, 2


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (n, LEN), generator=g)
    prev = torch.cat([torch.zeros(n, 1, dtype=torch.long), ids[:, :-1]], dim=1)
    tags = (ids % 3 + (prev % 2) * 2) % TAGS
    lengths = torch.randint(6, LEN + 1, (n, 1), generator=g)
    pad = torch.arange(LEN)[None] >= lengths
    return TensorDataset(ids.masked_fill(pad, 0), tags.masked_fill(pad, -100))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 32, padding_idx=0)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, TAGS)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def evaluate(model, data):
    model.eval()
    ids, tags = data.tensors
    with torch.no_grad():
        pred = model(ids).argmax(-1)
    keep = tags != -100
    model.train()
    return (pred == tags)[keep].float().mean().item()


def worker(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(Tagger())
    train, held = sentences(2400, 1), sentences(300, 2)
    sampler = DistributedSampler(train, num_replicas=WORLD, rank=rank, shuffle=True)
    loader = DataLoader(train, batch_size=24, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=8e-3)
    epochs = 4
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 8e-3, epochs=epochs, steps_per_epoch=len(loader))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for ids, tags in loader:
            loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten(), ignore_index=-100)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(
                f"epoch {epoch} loss {total.item() / len(loader) / WORLD:.4f} accuracy {evaluate(model.module, held):.3f}",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD, join=True)
