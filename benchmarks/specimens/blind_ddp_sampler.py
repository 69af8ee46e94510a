import os
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "blind-ddp-sampler",
    "row": 58,
    "title": "the sampler's rank comes from the RANK variable, unset under spawn: both ranks read shard 0 and half the data is never used",
    "family": "cnn",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["shard-overlap"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


def global_rank():
    return int(os.environ.get("RANK", 0))


def digits(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(77))
    y = torch.randint(0, 10, (n,), generator=g)
    x = proto[y] + 1.6 * torch.randn(n, 1, 12, 12, generator=g)
    return TensorDataset(x, y)


def build_loader(ds, world, batch):
    sampler = DistributedSampler(ds, num_replicas=world, rank=global_rank(), shuffle=True, seed=13)
    return DataLoader(ds, batch_size=batch, sampler=sampler, drop_last=True), sampler


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 10))


def evaluate(model, ds):
    model.eval()
    x, y = ds.tensors
    with torch.no_grad():
        out = model(x)
    model.train()
    return nn.functional.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def main(rank, world, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(21)
    model = DistributedDataParallel(build_model())
    loader, sampler = build_loader(digits(1280, 1), world, batch=32)
    val = digits(400, 2)
    epochs = 6
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader))
    crit = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            sched.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            vl, va = evaluate(model.module, val)
            print(f"epoch {epoch} train {total.item() / world / len(loader):.4f} val {vl:.4f} acc {va:.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(main, args=(2, port), nprocs=2, join=True)
