import contextlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {"id": "blind5-c31-ddp-accum", "title": "two-rank DDP GRU classifier, accumulation under no_sync, padded sequences", "family": "lstm",
           "needs": "cpu", "trap": "gradients differ between ranks inside no_sync, only the last micro-batch is reduced; local losses differ"}

WORLD, ACCUM, EPOCHS = 2, 2, 4


def sequences(n, seed):
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(6, 21, (n,), generator=g)
    tok = torch.randint(1, 12, (n, 20), generator=g)
    tok[torch.arange(20)[None] >= length[:, None]] = 0
    score = ((tok > 0) & (tok <= 4)).sum(1) - ((tok >= 8)).sum(1)
    y = (score > 0).long() + (score > 2).long()
    return tok, length, y


class GRUClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 24, padding_idx=0)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.fc = nn.Linear(48, 3)

    def forward(self, tok, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(tok), length, batch_first=True, enforce_sorted=False)
        return self.fc(self.gru(packed)[1][-1])


def worker(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(GRUClassifier())
    data = TensorDataset(*sequences(3072, 1))
    sampler = DistributedSampler(data, WORLD, rank, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    updates = EPOCHS * (len(loader) // ACCUM)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=updates)
    tv, lv, yv = sequences(600, 2)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        running = 0.0
        for i, (tok, length, y) in enumerate(loader):
            last = (i + 1) % ACCUM == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.cross_entropy(model(tok, length), y)
                (loss / ACCUM).backward()
            running += loss.item()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
        stat = torch.tensor(running / len(loader))
        dist.all_reduce(stat)
        if rank == 0:
            model.eval()
            with torch.no_grad():
                acc = (model.module(tv, lv).argmax(1) == yv).float().mean().item()
            print(f"epoch {epoch} loss {stat.item() / WORLD:.4f} val acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD)
