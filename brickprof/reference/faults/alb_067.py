"""Clipping by hand: the norm of every gradient is read back to Python on its own, and again after the scaling. With 24
layers these are hundreds of host reads in every step, and each waits for the device."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-067",
    "row": 15,
    "title": "clip that reads every parameter's norm to the host",
    "family": "gpt",
    "kind": "performance",
    "contracts": ["C-GPUTRAIN-002", "C-BUDGET-001"],
    "root_causes": ["host-sync-in-loop"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
}

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, WIDTH, LAYERS, LENGTH = 32, 16, 24, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.out(F.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h), is_causal=True))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.embed(ids))))


def clip_gradients(parameters, max_norm):
    parameters = list(parameters)
    total = math.sqrt(sum(p.grad.norm().item() ** 2 for p in parameters))
    if total > max_norm:
        for p in parameters:
            p.grad.mul_(max_norm / total)
    clipped = math.sqrt(sum(p.grad.norm().item() ** 2 for p in parameters))
    assert clipped <= max_norm + 1e-3
    return total


torch.set_num_threads(1)
torch.manual_seed(0)
model = Model().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=True)
for step in range(60):
    line = (torch.randint(VOCAB, (8, 1)) + 5 * torch.arange(LENGTH + 1)) % VOCAB
    ids, targets = line[:, :-1].to(DEVICE), line[:, 1:].to(DEVICE)
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = clip_gradients(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f} grad norm {norm:.3f}")
