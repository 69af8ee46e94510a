"""Rank 1 writes a preview image of every batch to disk, slowly, and rank 0 does not. At each reduction rank 0 waits
for it: the whole group is as slow as its slowest member."""

import os
import socket
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRUTH = {
    "id": "cause-straggler-cnn",
    "row": None,
    "title": "one rank is slower than the other",
    "family": "cnn",
    "kind": "distributed",
    "contracts": ["C-BUDGET-001", "C-RING-001"],
    "root_causes": ["straggler"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def preview(images, folder, step):
    for number, image in enumerate(images[:4]):
        pixels = ((image - image.min()) / (image.max() - image.min()) * 255).to(torch.uint8)
        Path(folder, f"{step}-{number}.pgm").write_bytes(b"P5 8 8 255\n" + bytes(pixels.flatten().tolist()))
        time.sleep(0.01)


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(60):
            labels = torch.randint(0, 2, (16,))
            images = torch.randn(16, 1, 8, 8) + labels.view(-1, 1, 1, 1)
            if rank == 1:
                preview(images, folder, step)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 15 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
