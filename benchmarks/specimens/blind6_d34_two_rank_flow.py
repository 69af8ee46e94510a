"""Density estimation with affine couplings, two gloo workers, accumulation with no_sync."""
import contextlib
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "blind6-d34-two-rank-flow",
    "title": "healthy normalising flow under DDP with accumulation",
    "family": "other",
    "needs": "cpu",
    "trap": "half of the backwards are not synchronised on purpose, only rank 0 prints and evaluates, last layers start at zero",
}


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x[:, :1], x[:, 1:]
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.squeeze(1)


class Flow(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.steps = nn.ModuleList(Coupling(i % 2 == 1) for i in range(n))

    def forward(self, x):
        logdet = 0.0
        for s in self.steps:
            x, ld = s(x)
            logdet = logdet + ld
        return (0.5 * x.square().sum(1) + 1.8379 - logdet).mean()


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    a = torch.rand(n, generator=g) * 3.14159
    k = torch.randint(0, 2, (n,), generator=g).float()
    x = torch.stack([a.cos() * (1 - 2 * k) + k - 0.5, a.sin() * (1 - 2 * k) + 0.3 * k - 0.15], 1)
    return x + 0.03 * torch.randn(n, 2, generator=g)


def worker(rank, world, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    data = TensorDataset(moons(5120, 3))
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=4)
    loader = DataLoader(data, 64, sampler=sampler, drop_last=True)
    model = DDP(Flow())
    accum, epochs = 2, 6
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader) // accum)
    valid = moons(1000, 8)
    for ep in range(epochs):
        sampler.set_epoch(ep)
        for i, (x,) in enumerate(loader):
            boundary = (i + 1) % accum == 0
            with contextlib.nullcontext() if boundary else model.no_sync():
                loss = model(x)
                (loss / accum).backward()
            if boundary:
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                opt.step()
                opt.zero_grad()
                sched.step()
        if rank == 0:
            model.eval()
            with torch.no_grad():
                print(f"epoch {ep} nll {loss.item():.3f} valid {model.module(valid).item():.3f}", flush=True)
            model.train()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, 29500 + os.getpid() % 1000), nprocs=2)
