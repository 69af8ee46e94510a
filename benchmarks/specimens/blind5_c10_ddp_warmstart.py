import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "blind5-c10-ddp-warmstart",
    "row": None,
    "title": "rank 0 alone loads the warm-start weights, after the DDP wrap: the two replicas hold different weights for the whole run",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["rank-divergence"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

WORLD, WARM = 2, "warmstart_encoder.pt"


class Tabular(nn.Module):
    def __init__(self, d_in=24, width=96, classes=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


def dataset(n, seed):
    g = torch.Generator().manual_seed(100)
    w1, w2 = torch.randn(24, 16, generator=g) / 5, torch.randn(16, 6, generator=g)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    y = (torch.tanh(2 * x @ w1) @ w2 + 0.2 * torch.randn(n, 6, generator=g)).argmax(1)
    return x, y


def make_warmstart():
    """Rotation-style pretext model saved by another team; here just a model with larger first-layer features."""
    g = torch.Generator().manual_seed(1)
    model = Tabular()
    state = model.state_dict()
    for k, v in state.items():
        if k.endswith("weight"):
            v.copy_(torch.randn(v.shape, generator=g) * (1.6 / v.shape[1]) ** 0.5)
    torch.save(state, WARM)


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(0)

    model = DDP(Tabular())
    if rank == 0 and os.path.exists(WARM):
        model.module.load_state_dict(torch.load(WARM))
        print("warm start loaded", flush=True)
    dist.barrier()

    data = TensorDataset(*dataset(4096, 5))
    sampler = DistributedSampler(data, WORLD, rank, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    xv, yv = dataset(1000, 6)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3 * len(loader))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += torch.tensor([loss.item(), 1.0])
        model.eval()
        with torch.no_grad():
            acc = (model.module(xv).argmax(1) == yv).float().mean().item()
        print(f"rank {rank} epoch {epoch} loss {(total[0] / total[1]).item():.4f} val acc {acc:.3f}", flush=True)
        dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "ddp_final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    make_warmstart()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD)
    for f in (WARM, "ddp_final.pt"):
        if os.path.exists(f):
            os.remove(f)
