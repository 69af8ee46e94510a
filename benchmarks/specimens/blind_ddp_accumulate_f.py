"""Two-rank DDP with gradient accumulation under no_sync; rank 0 alone logs and saves."""
import contextlib
import os
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {"id": "blind-ddp-accumulate-f", "title": "DDP, accumulation of 4 with no_sync, rank 0 evaluates and saves", "family": "mlp", "needs": "cpu",
           "trap": "three of four backwards do not reduce, the rank 0 does extra work at the end of an epoch"}


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def run(rank, world, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1)))
    train, val = data(4096, 1), data(512, 2)
    sampler = DistributedSampler(train, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=16, sampler=sampler, drop_last=True)
    accum, epochs = 4, 8
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=epochs * len(loader) // accum)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for k, (x, y) in enumerate(loader):
            last = (k + 1) % accum == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
                (loss / accum).backward()
            running += loss.detach()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
        dist.all_reduce(running)
        if rank == 0:
            model.eval()
            with torch.no_grad():
                v = nn.functional.mse_loss(model.module(val.tensors[0]).squeeze(-1), val.tensors[1]).item()
            model.train()
            torch.save(model.module.state_dict(), "ddp_accumulate.pt")
            print(f"epoch {epoch} train {running.item() / world / len(loader):.4f} val {v:.4f}", flush=True)
        dist.barrier()
    if rank == 0:
        os.remove("ddp_accumulate.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(run, args=(2, port), nprocs=2)
