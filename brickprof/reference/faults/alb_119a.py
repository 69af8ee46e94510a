"""Rotary positions applied in a loop over the places of the line: four small launches for each place, head group and
layer. The step is bound by starting kernels."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-119a",
    "row": 33,
    "title": "RoPE in a loop over positions",
    "family": "gpt",
    "kind": "performance",
    "contracts": ["C-BUDGET-001", "C-GPUTRAIN-002"],
    "root_causes": ["launch-storm"],
    "bricks": ["blocks.0.attention.rope", "blocks.0.attention", "blocks.0"],
    "first_step": 0,
    "needs": "gpu",
}

if not torch.cuda.is_available():
    print("this script needs a CUDA device; nothing was done")
    sys.exit(0)

VOCAB, WIDTH, HEADS, LENGTH, LAYERS = 256, 256, 8, 256, 4


class Rope(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("rates", 10_000.0 ** (-torch.arange(0, dim, 2) / dim))

    def forward(self, x):
        places = []
        for place in range(x.shape[-2]):
            left, right = x[..., place, :].chunk(2, -1)
            angle = place * self.rates
            places.append(
                torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], -1)
            )
        return torch.stack(places, dim=-2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rope = Rope(WIDTH // HEADS)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    line = (torch.randint(VOCAB, (8, 1)) + 5 * torch.arange(LENGTH + 1)) % VOCAB
    line = line.cuda()
    loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
