"""Two ranks with DistributedDataParallel.

`python ddp.py` spawns the ranks itself; `torchrun --nproc-per-node 2 ddp.py` works too.
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.enter = nn.Linear(12, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))
        self.leave = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x).tanh()
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x)


def quadrants(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, 12, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] + x[:, 2] > 0).long())


def train(rank: int, world: int, args: argparse.Namespace) -> None:
    on_gpu = torch.cuda.device_count() >= world
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(rank)

    data = quadrants(args.batch * world * args.steps)
    sampler = DistributedSampler(data, world, rank, shuffle=True)
    model = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step, (x, label) in enumerate(DataLoader(data, batch_size=args.batch, sampler=sampler)):
        loss = F.cross_entropy(model(x.to(device)), label.to(device))
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
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    if "RANK" in os.environ:  # torchrun has started us
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args)
    else:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        mp.spawn(train, args=(args.ranks, args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
