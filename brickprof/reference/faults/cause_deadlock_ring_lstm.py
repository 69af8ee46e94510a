"""Two ranks hand their hidden state on in a ring, and both receive before they send. Each waits for the other, and
nothing moves until the timeout ends the run."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

TRUTH = {
    "id": "cause-deadlock-ring-lstm",
    "row": None,
    "title": "both ranks receive first",
    "family": "lstm",
    "kind": "distributed",
    "contracts": ["C-RING-001", "C-PROCESS-001"],
    "root_causes": ["deadlock"],
    "bricks": [],
    "first_step": 20,
    "needs": "cpu",
    "run": ["--hang", "3"],
}


def exchange(state, rank, world):
    incoming = torch.empty_like(state)
    dist.recv(incoming, src=(rank - 1) % world)
    dist.send(state, dst=(rank + 1) % world)
    return incoming


def worker(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=9))
    torch.manual_seed(rank)
    lstm, out = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*lstm.parameters(), *out.parameters()], lr=3e-3)
    carried = torch.zeros(1, 8, 16)
    for step in range(60):
        x = torch.randn(8, 10, 4)
        states, (h, _) = lstm(x, (carried, torch.zeros_like(carried)))
        loss = nn.functional.mse_loss(out(states), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step >= 20:
            carried = exchange(h.detach().contiguous(), rank, world)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.start_processes(worker, args=(2,), nprocs=2, start_method="fork")
