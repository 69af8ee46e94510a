import contextlib
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
    "id": "blind-ddp-accumulate",
    "title": "DDP on two ranks with no_sync gradient accumulation, local batch norm, evaluation on rank 0 only",
    "family": "cnn",
    "needs": "cpu",
    "trap": "half of the backwards leave gradients unreduced, local losses differ between ranks, rank 1 never evaluates",
}

WORLD, ACCUM, EPOCHS, BATCH = 2, 2, 5, 16


def crosses(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    proto = torch.zeros(4, 1, 12, 12)
    proto[0, 0, 5:7, :] = 1
    proto[1, 0, :, 5:7] = 1
    proto[2, 0] = torch.eye(12)
    proto[3, 0] = torch.eye(12).flip(1)
    roll = torch.randint(-3, 4, (n,), generator=g)
    x = torch.stack([torch.roll(proto[c], int(s), dims=-1) for c, s in zip(y, roll)])
    return TensorDataset((x + 0.75 * torch.randn(x.shape, generator=g) - 0.1) / 0.8, y)


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 9, 4),
    )


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(17)
    train, test = crosses(2048, 1), crosses(400, 2)
    sampler = DistributedSampler(train, num_replicas=WORLD, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler, drop_last=True)
    ddp = DDP(convnet())
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=EPOCHS * len(loader) // ACCUM)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        ddp.train()
        for k, (x, y) in enumerate(loader):
            last = (k + 1) % ACCUM == 0
            with contextlib.nullcontext() if last else ddp.no_sync():
                loss = F.cross_entropy(ddp(x), y) / ACCUM
                loss.backward()
            if last:
                opt.step()
                opt.zero_grad()
                sched.step()
        mean = torch.tensor([loss.item() * ACCUM])
        dist.all_reduce(mean)
        if rank == 0:
            net = ddp.module.eval()
            with torch.no_grad():
                acc = sum((net(x).argmax(1) == y).sum().item() for x, y in DataLoader(test, 200)) / len(test)
            print(f"epoch {epoch} loss {mean.item() / WORLD:.4f} acc {acc:.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=WORLD)
