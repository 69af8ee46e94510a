import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TRUTH = {
    "id": "blind5-a10-ddp-gru",
    "row": None,
    "title": "the loss is computed through ddp.module, bypassing the DDP wrapper, so gradients are never all-reduced and the ranks drift apart",
    "family": "lstm",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

WORLD = 2
EPOCHS = 6


def waves(n, T=40):
    g = torch.Generator().manual_seed(4)
    f = torch.rand(n, 1, generator=g) * 0.5 + 0.1
    ph = torch.rand(n, 1, generator=g) * 6.28
    t = torch.arange(T + 1).float()
    s = torch.sin(f * t + ph) + 0.5 * torch.sin(2.1 * f * t)
    s = s + 0.05 * torch.randn(n, T + 1, generator=g)
    return s[:, :T].unsqueeze(-1), s[:, T:]


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1])

    def loss(self, x, y):
        return nn.functional.smooth_l1_loss(self(x), y)


def worker(rank, world):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ.setdefault("MASTER_PORT", "29613")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(100)
    x, y = waves(1600)
    train, test = TensorDataset(x[:1344], y[:1344]), (x[1344:], y[1344:])
    sampler = DistributedSampler(train, world, rank, shuffle=True, seed=7)
    loader = DataLoader(train, batch_size=32, sampler=sampler, drop_last=True)
    ddp = DDP(Forecaster())
    opt = torch.optim.AdamW(ddp.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=EPOCHS * len(loader))

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        ddp.train()
        for xb, yb in loader:
            opt.zero_grad()
            loss = ddp.module.loss(xb, yb)
            loss.backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            opt.step()
            sched.step()
        ddp.eval()
        with torch.no_grad():
            v = ddp.module.loss(*test)
            w = sum(p.double().pow(2).sum() for p in ddp.parameters()).sqrt()
        print(f"[rank {rank}] epoch {epoch} train {loss.item():.4f} test {v.item():.5f} |w| {w.item():.6f}", flush=True)
    dist.barrier()
    if rank == 0:
        torch.save(ddp.module.state_dict(), "forecaster.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(s.getsockname()[1])
    mp.spawn(worker, args=(WORLD,), nprocs=WORLD)
