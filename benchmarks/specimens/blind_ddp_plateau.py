import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "blind-ddp-plateau",
    "row": None,
    "title": "each rank feeds its own validation loss to ReduceLROnPlateau, so the ranks step with different learning rates and their weights drift apart",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["rank-divergence"],
    "bricks": [],
    "first_step": 96,
    "needs": "cpu",
    "crashes": False,
}

WORLD = 2


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(20, 8, generator=torch.Generator().manual_seed(9)) * 0.35
    x = torch.randn(n, 20, generator=g)
    y = torch.sin(x @ w).mul(torch.linspace(1, 2, 8)).sum(1, keepdim=True)
    return TensorDataset(x, y + 0.5 * torch.randn(n, 1, generator=g))


def build():
    return nn.Sequential(nn.Linear(20, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))


@torch.no_grad()
def local_loss(model, loader):
    model.eval()
    tot = cnt = 0
    for x, y in loader:
        tot += nn.functional.mse_loss(model(x), y, reduction="sum").item()
        cnt += len(x)
    model.train()
    return tot / cnt


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(0)

    model = DDP(build())
    train = make_split(4096, 1)
    sampler = DistributedSampler(train, WORLD, rank, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=32, sampler=sampler, drop_last=True)
    val = make_split(512, 2)
    val_loader = DataLoader(torch.utils.data.Subset(val, range(rank, len(val), WORLD)), batch_size=128)

    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.3, patience=1, threshold=0.01)

    step = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 16 == 0:
                v = local_loss(model.module, val_loader)
                plateau.step(v)
                print(
                    f"[{rank}] step {step:3d} train {loss.item():.3f} val {v:.3f} lr {opt.param_groups[0]['lr']:.5f} "
                    f"|w| {sum(p.norm().item() for p in model.parameters()):.5f}",
                    flush=True,
                )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(free_port(),), nprocs=WORLD)
