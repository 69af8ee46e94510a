"""Two-tower matching model, data parallel over two processes."""
import os
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

TRUTH = {
    "id": "blind-ddp-matcher",
    "row": 57,
    "title": "the trainer computes the loss through ddp.module, so no gradient is ever averaged between the ranks",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["gradient-not-reduced"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class Matcher(nn.Module):
    def __init__(self, d=24, h=64, e=32):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, e))
        self.item = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, e))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, q, i):
        return F.normalize(self.query(q), dim=-1), F.normalize(self.item(i), dim=-1)

    def training_loss(self, q, i):
        a, b = self(q, i)
        sim = self.log_scale.exp() * a @ b.t()
        target = torch.arange(len(q))
        return 0.5 * (F.cross_entropy(sim, target) + F.cross_entropy(sim.t(), target))


class Trainer:
    def __init__(self, rank, world, steps=150, batch=32):
        self.rank, self.world, self.steps, self.batch = rank, world, steps, batch
        torch.manual_seed(0)
        self.model = DDP(Matcher())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps)
        g = torch.Generator().manual_seed(9)
        z = torch.randn(4000, 12, generator=g)
        wa, wb = torch.randn(2, 12, 24, generator=g) / 3.5
        self.q, self.i = z @ wa + 0.1 * torch.randn(4000, 24, generator=g), torch.tanh(z @ wb)
        self.own = torch.arange(rank, 4000, world)
        self.gen = torch.Generator().manual_seed(100 + rank)

    def step(self):
        idx = self.own[torch.randint(0, len(self.own), (self.batch,), generator=self.gen)]
        loss = self.model.module.training_loss(self.q[idx], self.i[idx])
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return loss.detach()

    def run(self):
        for s in range(self.steps):
            loss = self.step()
            if (s + 1) % 25 == 0:
                dist.all_reduce(loss)
                w = sum(p.detach().double().sum() for p in self.model.parameters()).item()
                print(f"rank {self.rank} step {s + 1} mean loss {loss.item() / self.world:.4f} checksum {w:.6f}", flush=True)


def worker(rank, world, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    Trainer(rank, world).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (2, port), nprocs=2)
