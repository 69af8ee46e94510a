"""Residual regressor with a hand-written data-parallel step: gradients travel in one flat bucket per block."""
import os
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.utils import parameters_to_vector

TRUTH = {
    "id": "blind-bucket-reduce",
    "row": 60,
    "title": "the buckets are reduced in the order of a Python set of strings, which differs between the ranks",
    "family": "mlp",
    "kind": "distributed",
    "contracts": [],
    "root_causes": ["collective-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, d_in=16, d=32, depth=8):
        super().__init__()
        self.stem = nn.Linear(d_in, d)
        self.blocks = nn.ModuleList(ResBlock(d) for _ in range(depth))
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x).squeeze(-1)


class BucketReducer:
    def __init__(self, model, world):
        self.world = world
        self.buckets = {}
        for name, p in model.named_parameters():
            parts = name.split(".")
            key = ".".join(parts[:2]) if parts[0] == "blocks" else "edge"
            self.buckets.setdefault(key, []).append(p)
        self.inner = {k for k in self.buckets if k != "edge"}

    def _reduce(self, params):
        flat = parameters_to_vector([p.grad for p in params])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for p in params:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()

    def __call__(self):
        self._reduce(self.buckets["edge"])
        for key in self.inner:
            self._reduce(self.buckets[key])


def worker(rank, world, port, steps=160):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = Tower()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    reducer = BucketReducer(model, world)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(50 + rank)
    for step in range(steps):
        x = torch.randn(32, 16, generator=g)
        y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3].abs()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        reducer()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if (step + 1) % 20 == 0:
            c = sum(p.detach().double().abs().sum() for p in model.parameters()).item()
            print(f"r{rank} step {step + 1} loss {loss.item():.4f} |w| {c:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.close()
    mp.spawn(worker, args=(2, port), nprocs=2)
