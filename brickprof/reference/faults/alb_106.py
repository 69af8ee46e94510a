"""The fast attention path was written without the rotary positions; the module is there, and no forward calls it. The
model cannot tell the tokens' places apart and stops at a high loss."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-106",
    "row": 31,
    "title": "rotary positions are built and never applied",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-ROPE-001", "C-SENTINEL-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["silent-fallback", "plateau"],
    "bricks": ["blocks.0.attention.rope", "blocks.1.attention.rope", "blocks.0.attention", "blocks.1.attention"],
    "first_step": 0,
    "needs": "cpu",
}

VOCAB, WIDTH, HEADS, LENGTH = 16, 32, 2, 16


class Rotary(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        angle = torch.outer(torch.arange(length), 100.0 ** (-torch.arange(0, dim, 2) / dim))
        self.register_buffer("cos", angle.cos().repeat(1, 2))
        self.register_buffer("sin", angle.sin().repeat(1, 2))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin


class Attention(nn.Module):
    def __init__(self, fast=True):
        super().__init__()
        self.fast = fast
        self.rope = Rotary(WIDTH // HEADS, LENGTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def split(self, x):
        return (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        q, k, v = self.split(x)
        if self.fast:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q, k = self.rope(q), self.rope(k)
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            scores = scores + torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(size=32):
    """Each token is the one that stood three places before."""
    seed = torch.randint(VOCAB, (size, 3))
    line = seed.repeat(1, LENGTH // 3 + 2)[:, : LENGTH + 1]
    return line[:, :-1], line[:, 1:]


torch.set_num_threads(1)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
for step in range(200):
    ids, targets = batch()
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
