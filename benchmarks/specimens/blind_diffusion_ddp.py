"""Denoising diffusion of 2-d moons on two data-parallel ranks."""

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
    "id": "blind-diffusion-ddp",
    "title": "noise-prediction diffusion model, DDP with two gloo ranks, DistributedSampler with set_epoch, EMA on rank 0",
    "family": "other",
    "needs": "cpu",
    "trap": "loss falls early and then stays near its irreducible level with noise from random timesteps; ranks see different samples and losses; only rank 0 evaluates and keeps EMA weights",
}

STEPS = 50
BETA = torch.linspace(1e-3, 0.15, STEPS)
ABAR = torch.cumprod(1 - BETA, 0)


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = 3.1416 * torch.rand(n, generator=g)
    side = (torch.rand(n, generator=g) < 0.5).float()
    x = torch.where(side > 0, t.cos(), 1 - t.cos())
    y = torch.where(side > 0, t.sin(), 0.5 - t.sin())
    p = torch.stack([x - 0.5, y - 0.25], 1) + 0.05 * torch.randn(n, 2, generator=g)
    return p / p.std(0)


class Denoiser(nn.Module):
    def __init__(self, h=96):
        super().__init__()
        self.time = nn.Embedding(STEPS, h)
        self.inp = nn.Linear(2, h)
        self.mid = nn.ModuleList(nn.Linear(h, h) for _ in range(3))
        self.out = nn.Linear(h, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        for lin in self.mid:
            h = h + lin(nn.functional.silu(h))
        return self.out(nn.functional.silu(h))


def diffusion_loss(model, x0):
    t = torch.randint(0, STEPS, (len(x0),))
    eps = torch.randn_like(x0)
    a = ABAR[t].unsqueeze(1)
    return nn.functional.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t), eps)


@torch.no_grad()
def sample(model, n):
    model.eval()
    x = torch.randn(n, 2)
    for i in reversed(range(STEPS)):
        t = torch.full((n,), i)
        mean = (x - BETA[i] / (1 - ABAR[i]).sqrt() * model(x, t)) / (1 - BETA[i]).sqrt()
        x = mean + (BETA[i].sqrt() * torch.randn_like(x) if i else 0)
    return x


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(100)
    net = Denoiser()
    ema = (
        torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.97))
        if rank == 0
        else None
    )
    ddp = DDP(net)
    torch.manual_seed(100 + rank)
    data = TensorDataset(moons(6400, 1))
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=128, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3, weight_decay=0.0)
    epochs = 7
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=epochs * len(loader), pct_start=0.1)
    ref = moons(500, 9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        tot = torch.zeros(())
        for (x0,) in loader:
            loss = diffusion_loss(ddp, x0)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if ema is not None:
                ema.update_parameters(net)
            tot += loss.detach()
        tot /= len(loader)
        dist.all_reduce(tot)
        if rank == 0 and (epoch % 3 == 0 or epoch == epochs - 1):
            d = torch.cdist(sample(ema, 300), ref).min(1).values.mean().item()
            print(f"epoch {epoch} loss {tot.item() / world:.4f} distance to data {d:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(worker, args=(2, free), nprocs=2)
