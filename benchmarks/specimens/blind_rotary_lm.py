import math
import time
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-rotary-lm",
    "row": 33,
    "title": "the rotary embedding walks over heads and positions in a Python loop of tiny operations",
    "family": "gpt",
    "kind": "performance",
    "contracts": [],
    "root_causes": ["launch-storm"],
    "bricks": ["blocks.0.attn.rope", "blocks.1.attn.rope"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    vocab: int = 48
    block: int = 24
    dim: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 16
    steps: int = 64
    lr: float = 3e-3


class Rotary(nn.Module):
    def __init__(self, hd):
        super().__init__()
        self.register_buffer("freq", 10000 ** (-torch.arange(0, hd, 2).float() / hd), persistent=False)

    def forward(self, x):
        B, H, T, D = x.shape
        rows = []
        for h in range(H):
            cols = []
            for t in range(T):
                ang = self.freq * t
                a, b = x[:, h, t, 0::2], x[:, h, t, 1::2]
                c, s = ang.cos(), ang.sin()
                cols.append(torch.cat([a * c - b * s, a * s + b * c], dim=-1))
            rows.append(torch.stack(cols, dim=1))
        return torch.stack(rows, dim=1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.proj = nn.Linear(c.dim, c.dim, bias=False)
        self.rope = Rotary(c.dim // c.heads)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.attn = Attention(c)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c.vocab, c.dim)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, idx):
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def sample(c, g):
    start = torch.randint(0, c.vocab, (c.batch, 1), generator=g)
    stride = torch.randint(1, 5, (c.batch, 1), generator=g)
    seq = (start + stride * torch.arange(c.block + 1)) % c.vocab
    return seq[:, :-1], seq[:, 1:]


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = LM(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.1)
    warm = 10
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * (s - warm) / (cfg.steps - warm))))
    for step in range(cfg.steps):
        t0 = time.perf_counter()
        x, y = sample(cfg, g)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"{step:4d} loss {loss.item():.3f} {1e3 * (time.perf_counter() - t0):.0f} ms")
