"""Every small tensor gets a block of memory of its own, two megabytes at least, from a pool that was written for
large ones. Twenty thousand tensors of some kilobytes fill a card whose model needs a tenth of it."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-098",
    "row": 55,
    "title": "an allocation of two megabytes for every tiny tensor",
    "family": "gpt",
    "kind": "process",
    "contracts": ["C-MEMSTABLE-001", "C-PROCESS-001"],
    "root_causes": ["out-of-memory", "memory-leak"],
    "bricks": [],
    "first_step": 0,
    "needs": "gpu",
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device; nothing was done")
    sys.exit(0)

PAGE = 2 << 20
torch.cuda.set_per_process_memory_fraction(min(1.0, 24e9 / torch.cuda.get_device_properties(0).total_memory))


def allocate(shape):
    """A tensor at the start of its own page."""
    count = torch.Size(shape).numel()
    page = torch.empty(max(PAGE // 4, count), device="cuda")
    return page[:count].view(shape)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Statistics:
    """Mean and spread of every row of every weight, kept for the report of the run."""

    def __init__(self):
        self.kept = []

    def note(self, model):
        for parameter in model.parameters():
            if parameter.dim() == 2:
                for row in parameter.detach()[:64]:
                    place = allocate((2,))
                    place[0], place[1] = row.mean(), row.std()
                    self.kept.append(place)


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(128, 64), *(Block(64) for _ in range(8)), nn.Linear(64, 128)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
statistics = Statistics()
for step in range(60):
    ids = torch.randint(128, (32, 16), device="cuda")
    loss = F.cross_entropy(model(ids).flatten(0, 1), ((3 * ids + 1) % 128).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    statistics.note(model)
    print(f"step {step} loss {loss.item():.4f} memory {torch.cuda.memory_allocated() >> 20} MB", flush=True)
