"""FSDP2: each of two ranks keeps half of every parameter.

`python fsdp.py` spawns the ranks itself; `torchrun --nproc-per-node 2 fsdp.py` works too.
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shrink(F.gelu(self.expand(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(10, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def train(rank: int, world: int, args: argparse.Namespace) -> None:
    kind = "cuda" if torch.cuda.device_count() >= world else "cpu"
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", rank=rank, world_size=world)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net().to(device)
    mesh = init_device_mesh(kind, (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    torch.manual_seed(100 + rank)
    for step in range(args.steps):
        x = torch.randn(args.batch, 10, device=device)
        loss = F.mse_loss(model(x), x[:, :1].abs() + x[:, 1:2] * x[:, 2:3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    if "RANK" in os.environ:  # torchrun has started us
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args)
    else:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        mp.spawn(train, args=(args.ranks, args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
