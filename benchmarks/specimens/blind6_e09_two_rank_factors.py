import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TRUTH = {
    "id": "blind6-e09-two-rank-factors",
    "row": None,
    "title": "asynchronous all-reduces started in gradient hooks are dropped without wait() before the optimizer step",
    "family": "other",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["collective-orphaned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

USERS, ITEMS, DIM = 4000, 2000, 32
STEPS, BATCH = 60, 256


class OverlapReducer:
    """Starts the reduction of each gradient as soon as autograd has produced it."""

    def __init__(self, module):
        self.world = dist.get_world_size()
        self.inflight = []
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(self._launch)

    def _launch(self, p):
        p.grad.div_(self.world)
        self.inflight.append(dist.all_reduce(p.grad, async_op=True))

    def finish(self):
        n = len(self.inflight)
        self.inflight = []
        return n


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.mix = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        return self.mix(torch.cat([a, b, a * b], 1)).squeeze(1)


def ratings(rank):
    """Every rank owns its own half of the users."""
    g = torch.Generator().manual_seed(50)
    ug, ig = torch.randint(0, 4, (USERS,), generator=g), torch.randint(0, 4, (ITEMS,), generator=g)
    table = torch.randn(4, 4, generator=g)
    own = torch.Generator().manual_seed(100 + rank)
    half = USERS // 2
    while True:
        u = torch.randint(0, half, (BATCH,), generator=own) + rank * half
        i = torch.randint(0, ITEMS, (BATCH,), generator=own)
        yield u, i, table[ug[u], ig[i]]


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = Factors()
    reducer = OverlapReducer(model)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step, (u, i, r) in zip(range(STEPS), ratings(rank)):
        loss = nn.functional.mse_loss(model(u, i), r)
        opt.zero_grad()
        loss.backward()
        reducer.finish()
        opt.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    sums = torch.tensor([p.detach().double().abs().sum().item() for p in model.parameters()], dtype=torch.float64)
    everyone = [torch.empty_like(sums) for _ in range(world)]
    dist.all_gather(everyone, sums)
    if rank == 0:
        print("parameter sums", [[round(v, 3) for v in e.tolist()] for e in everyone])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)
