"""Blocks are computed again in the backward pass to save memory, so that each forward runs twice."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

TRUTH = {
    "id": "gradient-checkpointing",
    "title": "activations computed again in the backward pass",
    "family": "gpt",
    "trap": "forward passes happen inside the backward pass; two per block and step",
    "needs": "cpu",
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.gate, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)
        self.mix = nn.Conv1d(width, width, 3, groups=width)

    def forward(self, x):
        h = self.norm(x)
        h = self.mix(F.pad(h.transpose(1, 2), (2, 0))).transpose(1, 2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, vocabulary=20, width=32, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


torch.set_num_threads(1)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(120):
    start, stride = torch.randint(0, 20, (16, 1)), torch.randint(1, 5, (16, 1))
    ids = (start + stride * torch.arange(17)) % 20
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
