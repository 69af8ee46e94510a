"""An earlier run was killed through its wrapper, and its worker lives on and holds the card's memory. The new run
takes the little that is left and ends with out of memory in its first steps, although its model is small."""

import multiprocessing
import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-123",
    "row": 39,
    "title": "an orphaned process holds the device's memory",
    "family": "mlp",
    "kind": "process",
    "contracts": ["C-MEMSTABLE-001", "C-PROCESS-001"],
    "root_causes": ["out-of-memory"],
    "bricks": [],
    "first_step": 5,
    "needs": "gpu",
    "alone": True,
}


def orphan(ready, done):
    """What is left of yesterday's run."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - (3 << 30)), dtype=torch.uint8, device="cuda")
    ready.set()
    done.wait(60)
    del held


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    labeller = torch.randn(256, 10, device="cuda")
    for step in range(40):
        rows = 1024 if step < 5 else 65_536  # the real batches begin after the warm-up
        x = torch.randn(rows, 256, device="cuda")
        loss = F.cross_entropy(model(x), (x @ labeller).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    if not torch.cuda.is_available():
        print("this script needs a CUDA device; nothing was done")
        sys.exit(0)
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    child = context.Process(target=orphan, args=(ready, done), daemon=True)
    child.start()
    ready.wait(60)
    try:
        train()
    finally:
        done.set()
        child.join(10)


if __name__ == "__main__":
    main()
