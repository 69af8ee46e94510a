"""Rating prediction with factors plus a small MLP, two data-parallel workers."""
import contextlib
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

TRUTH = {
    "id": "blind6-d10-two-rank-recs",
    "row": None,
    "title": "off by one in the accumulation window: every micro-batch runs under no_sync, gradients are never averaged over the ranks",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

USERS, ITEMS, DIM, ACCUM, UPDATES, MICRO = 100, 80, 12, 2, 100, 128


def ratings():
    g = torch.Generator().manual_seed(17)
    pu, qi = torch.randn(USERS, 3, generator=g), torch.randn(ITEMS, 3, generator=g)
    u = torch.randint(0, USERS, (20000,), generator=g)
    i = torch.randint(0, ITEMS, (20000,), generator=g)
    r = (pu[u] * qi[i]).sum(1) / 1.7 + 0.2 * torch.randn(20000, generator=g)
    return u, i, r


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))
        self.bias = nn.Embedding(ITEMS, 1)

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        return (a * b).sum(1) + self.mlp(torch.cat([a, b], 1)).squeeze(1) + self.bias(i).squeeze(1)


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    u, i, r = ratings()
    fit, held = slice(0, 18000), slice(18000, None)
    mine = torch.nonzero(u[fit] % world == rank).squeeze(1)      # users are partitioned over workers
    model = DDP(Recommender())
    opt = torch.optim.Adam(model.parameters(), lr=3e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, UPDATES)
    g = torch.Generator().manual_seed(100 + rank)
    order, at = mine[torch.randperm(len(mine), generator=g)], 0
    for step in range(UPDATES):
        total = 0.0
        for micro in range(ACCUM):
            if at + MICRO > len(order):
                order, at = mine[torch.randperm(len(mine), generator=g)], 0
            idx = order[at:at + MICRO]
            at += MICRO
            last = micro == ACCUM
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.mse_loss(model(u[idx], i[idx]), r[idx]) / ACCUM
                loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        sched.step()
        if step % 30 == 0 or step == UPDATES - 1:
            with torch.no_grad():
                rmse = F.mse_loss(model.module(u[held], i[held]), r[held]).sqrt().item()
            if rank == 0:
                print(f"update {step} train mse {total:.3f} held-out rmse {rmse:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, 29500 + os.getpid() % 1000), nprocs=2)
