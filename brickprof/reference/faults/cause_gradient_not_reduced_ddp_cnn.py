"""The model is wrapped in DistributedDataParallel and called through .module, which goes around the wrapper. No
gradient is ever reduced, and the two ranks train two models that drift apart."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TRUTH = {
    "id": "cause-gradient-not-reduced-ddp-cnn",
    "row": None,
    "title": "the forward pass goes around DDP",
    "family": "cnn",
    "kind": "distributed",
    "contracts": ["C-DDP-001", "DIST-001"],
    "root_causes": ["gradient-not-reduced"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def batch(size=24):
    labels = torch.randint(0, 3, (size,))
    images = 0.4 * torch.randn(size, 1, 9, 9)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 3 * label : 3 * label + 3] += 1
    return images, labels


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(100 + rank)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 3))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(60):
        images, labels = batch()
        loss = nn.functional.cross_entropy(model.module(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f} b {net[3].bias[0].item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
