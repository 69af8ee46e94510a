"""Next-item prediction over user sessions, data parallel on two processes."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-b10-ddp-sessions",
    "row": None,
    "title": "shard index comes from LOCAL_RANK, which mp.spawn never sets: both ranks read shard 0, half the data is never seen",
    "family": "gpt",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["shard-overlap"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

N_ITEMS, LEN = 60, 12


def sessions(n, seed):
    g = torch.Generator().manual_seed(1234)
    nxt = torch.stack([torch.randperm(N_ITEMS, generator=g) for _ in range(4)])
    g = torch.Generator().manual_seed(seed)
    mode = torch.arange(n) * 4 // n  # logs arrive region by region
    s = torch.empty(n, LEN + 1, dtype=torch.long)
    s[:, 0] = torch.randint(0, N_ITEMS, (n,), generator=g)
    for t in range(LEN):
        s[:, t + 1] = nxt[mode, s[:, t]]
        noise = torch.rand(n, generator=g) < 0.1
        s[noise, t + 1] = torch.randint(0, N_ITEMS, (int(noise.sum()),), generator=g)
    return s


class SessionModel(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS, d)
        self.pos = nn.Parameter(torch.randn(LEN, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, N_ITEMS)
        self.register_buffer("mask", torch.triu(torch.full((LEN, LEN), float("-inf")), 1))

    def forward(self, x):
        return self.out(self.norm(self.enc(self.item(x) + self.pos, mask=self.mask)))


def worker(rank, world, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)

    train, val = sessions(480, 5), sessions(300, 6)
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    per_rank = len(train) // world
    shard = TensorDataset(train[local_rank * per_rank:(local_rank + 1) * per_rank])
    loader = DataLoader(shard, batch_size=16, shuffle=True, drop_last=True)

    model = DDP(SessionModel())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    epochs = 11
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader))
    for epoch in range(epochs):
        model.train()
        tot = 0.0
        for (s,) in loader:
            logits = model(s[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), s[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            tot += loss.item()
        stat = torch.tensor(tot / len(loader))
        dist.all_reduce(stat)
        if rank == 0:
            model.eval()
            with torch.no_grad():
                lg = model.module(val[:, :-1])
                vl = F.cross_entropy(lg.flatten(0, 1), val[:, 1:].flatten()).item()
            print(f"epoch {epoch} train {stat.item() / world:.3f} val {vl:.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(worker, args=(2, free_port()), nprocs=2)
