"""A cache of augmented rows grows without bound, and the watchdog of the container kills the process when it passes
its limit. Nothing is printed: the process is simply gone, by SIGKILL."""

import os
import resource
import signal
import threading
import time

import torch
from torch import nn

TRUTH = {
    "id": "cause-killed-watchdog-mlp",
    "row": None,
    "title": "killed from outside for its memory",
    "family": "mlp",
    "kind": "process",
    "contracts": ["C-PROCESS-001", "C-MEMSTABLE-001"],
    "root_causes": ["killed", "out-of-memory"],
    "bricks": [],
    "first_step": None,
    "needs": "cpu",
}


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def container(limit):
    """Stands for the kernel: it looks from time to time, and kills."""
    while resident() < limit:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


class Augmented:
    def __init__(self):
        self.cache = {}

    def batch(self, step):
        x = torch.randn(64, 16)
        self.cache[step] = torch.cat([x + 0.01 * torch.randn_like(x) for _ in range(400)])
        return self.cache[step][torch.randint(0, 25600, (64,))]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    threading.Thread(target=container, args=(resident() + 250 * 2**20,), daemon=True).start()
    source = Augmented()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1000):
        x = source.batch(step)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
