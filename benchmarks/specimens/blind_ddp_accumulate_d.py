import contextlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TRUTH = {
    "id": "blind-ddp-accumulate-d",
    "row": 57,
    "title": "no_sync covers the wrong micro-batch, half of every gradient is never reduced and the ranks drift apart",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced", "rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

ACCUM = 2


def dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(77)
    x = torch.randn(n, 20, generator=g)
    a, b = torch.randn(20, 16, generator=w), torch.randn(16, 5, generator=w)
    y = (torch.tanh(x @ a / 4) @ b + 0.3 * torch.randn(n, 5, generator=g)).argmax(1)
    return TensorDataset(x, y)


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = dataset(6400, 0)
    vx, vy = dataset(1000, 1).tensors
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    ddp = DDP(net)
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    epochs = 4
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader) // ACCUM)
    crit = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        tot = 0.0
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % ACCUM == 0
            ctx = contextlib.nullcontext() if i % ACCUM == 0 else ddp.no_sync()
            with ctx:
                loss = crit(ddp(x), y) / ACCUM
                loss.backward()
            tot += loss.item() * ACCUM
            if last:
                opt.step()
                opt.zero_grad()
                sched.step()
        ddp.eval()
        with torch.no_grad():
            out = net(vx)
            acc = (out.argmax(1) == vy).float().mean().item()
        norm = sum(p.detach().norm() ** 2 for p in net.parameters()).sqrt().item()
        print(
            f"[rank {rank}] epoch {epoch} train {tot / len(loader):.4f} val {crit(out, vy).item():.4f} acc {acc:.3f} |w| {norm:.5f}",
            flush=True,
        )
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(worker, args=(2, free_port()), nprocs=2)
