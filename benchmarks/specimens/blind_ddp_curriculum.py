import contextlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

TRUTH = {
    "id": "blind-ddp-curriculum",
    "title": "two-rank DDP with no_sync accumulation and a length curriculum",
    "family": "lstm",
    "needs": "cpu",
    "trap": "local gradients differ in the micro-steps without synchronisation; the loss steps up whenever sequences get longer",
}


class Parity(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.fc(h)


def batch(n, length, g):
    bits = torch.randint(0, 2, (n, length), generator=g)
    mark = (torch.rand(n, length, generator=g) < 0.5).long()
    y = (bits * mark).cumsum(1).clamp(max=3) >= 2
    return torch.stack([bits, mark], -1).float(), y.long()


def work(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(100 + rank)
    model = DDP(Parity())
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    accum = 2
    for step in range(210):
        length = 4 + 4 * (step // 70)
        opt.zero_grad()
        total = torch.zeros(())
        for m in range(accum):
            x, y = batch(32, length, g)
            with model.no_sync() if m < accum - 1 else contextlib.nullcontext():
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accum
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 35 == 0 or step == 209:
            dist.all_reduce(total)
            if rank == 0:
                print(f"{step} len {length} loss {total.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (2, port), 2)
