import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TRUTH = {
    "id": "blind-mf-workers",
    "row": None,
    "title": "the shard index comes from LOCAL_RANK, which mp.spawn does not set: both ranks train on shard 0 and half of the ratings is never seen",
    "family": "other",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["shard-overlap"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    users: int = 300
    items: int = 200
    dim: int = 8
    ratings: int = 12000
    batch: int = 100
    epochs: int = 6
    lr: float = 0.02
    l2: float = 1e-4
    world: int = 2


class Factors(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user, self.item = nn.Embedding(cfg.users, cfg.dim), nn.Embedding(cfg.items, cfg.dim)
        self.user_bias, self.item_bias = nn.Embedding(cfg.users, 1), nn.Embedding(cfg.items, 1)
        self.mean = nn.Parameter(torch.zeros(()))
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(1)
        return self.mean + dot + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0]


def ratings(cfg, n, seed):
    truth = torch.Generator().manual_seed(1)
    p, q = torch.randn(cfg.users, 3, generator=truth), torch.randn(cfg.items, 3, generator=truth)
    bu, bi = torch.randn(cfg.users, generator=truth) * 0.5, torch.randn(cfg.items, generator=truth) * 0.5
    g = torch.Generator().manual_seed(seed)
    u = torch.randint(0, cfg.users, (n,), generator=g)
    i = torch.randint(0, cfg.items, (n,), generator=g)
    r = 3 + (p[u] * q[i]).sum(1) * 0.6 + bu[u] + bi[i] + 0.2 * torch.randn(n, generator=g)
    return u, i, r


class ShardLoader:
    def __init__(self, tensors, shard, shards, batch, seed):
        self.parts = [t[shard::shards] for t in tensors]
        self.batch, self.gen = batch, torch.Generator().manual_seed(seed)

    def __iter__(self):
        order = torch.randperm(len(self.parts[0]), generator=self.gen)
        for k in range(0, len(order) - self.batch + 1, self.batch):
            yield [t[order[k : k + self.batch]] for t in self.parts]


def worker(rank, cfg, port):
    torch.set_num_threads(1)
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=cfg.world)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Factors(cfg))
    loader = ShardLoader(ratings(cfg, cfg.ratings, 2), local_rank, cfg.world, cfg.batch, seed=50 + local_rank)
    vu, vi, vr = ratings(cfg, 3000, 3)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    steps = cfg.epochs * (cfg.ratings // cfg.world // cfg.batch)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for epoch in range(cfg.epochs):
        total = n = 0
        for u, i, r in loader:
            pred = model(u, i)
            reg = cfg.l2 * (model.module.user(u).pow(2).sum() + model.module.item(i).pow(2).sum()) / len(u)
            loss = (pred - r).pow(2).mean() + reg
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total, n = total + loss.item(), n + 1
        if rank == 0:
            model.eval()
            with torch.no_grad():
                rmse = (model.module(vu, vi) - vr).pow(2).mean().sqrt().item()
            model.train()
            print(f"epoch {epoch} train mse {total / n:.4f} val rmse {rmse:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    cfg = Config()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(cfg, port), nprocs=cfg.world)


if __name__ == "__main__":
    main()
