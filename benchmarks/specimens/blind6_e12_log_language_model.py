"""Small causal transformer over a token file on disk (memory mapped)."""
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind6-e12-log-language-model",
    "row": None,
    "title": "the corpus file is compacted in place while it is memory mapped; reads past its new end raise SIGBUS",
    "family": "gpt",
    "kind": "process",
    "contracts": [],
    "root_causes": ["crashed-by-signal"],
    "bricks": [],
    "first_step": 120,
    "needs": "cpu",
    "crashes": True,
}

BIN = Path("e12_tokens.bin")
VOCAB, BLOCK = 40, 32


def write_corpus(n_tokens=400_000):
    rng = np.random.default_rng(0)
    nxt = rng.integers(0, VOCAB, (VOCAB, 3))
    toks = np.empty(n_tokens, np.uint16)
    t = 0
    picks = rng.integers(0, 3, n_tokens)
    for i in range(n_tokens):
        toks[i] = t
        t = nxt[t, picks[i]]
    toks.tofile(BIN)


def compact(path, keep=0.1):
    """Drop the oldest log lines so that the disk does not fill up."""
    toks = np.fromfile(path, np.uint16)
    with open(path, "wb") as f:
        toks[-int(len(toks) * keep):].tofile(f)
    print(f"compacted {path} to {os.path.getsize(path)} bytes", flush=True)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class LM(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(BLOCK, d)
        self.blocks = nn.Sequential(*[Block(d, 4) for _ in range(depth)])
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        return self.head(self.ln(self.blocks(x)))


def get_batch(data, n, rng):
    at = rng.integers(0, len(data) - BLOCK - 1, n)
    w = torch.from_numpy(np.stack([data[i:i + BLOCK + 1] for i in at]).astype(np.int64))
    return w[:, :-1], w[:, 1:]


def main():
    torch.manual_seed(0)
    if not BIN.exists() or os.path.getsize(BIN) != 800_000:
        write_corpus()
    data = np.memmap(BIN, np.uint16, mode="r")
    rng = np.random.default_rng(3)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    total, housekeeping = 300, 120
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=total)
    for step in range(total):
        if step and step % housekeeping == 0:
            compact(BIN)
        x, y = get_batch(data, 24, rng)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


main()
