"""Pretrain a small language model on general text, then adapt it to a new domain."""
import math
import os
import tempfile
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind5-b13-adapt-lm",
    "row": None,
    "title": "adaptation run takes the step counter out of the pretraining checkpoint: it starts at step 250 of 300 with the lr at the end of its cosine",
    "family": "gpt",
    "kind": "process",
    "contracts": [],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": 250,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, BLOCK = 48, 24


@dataclass
class RunConfig:
    name: str
    max_steps: int
    lr: float
    warmup: int = 20
    batch: int = 16
    init_from: Optional[str] = None
    log_every: int = 25


class Domain:
    def __init__(self, seed, branch=3):
        g = torch.Generator().manual_seed(seed)
        self.next = torch.randint(0, VOCAB, (VOCAB, branch), generator=g)
        self.probs = torch.tensor([0.8, 0.15, 0.05])[:branch]
        self.g = torch.Generator().manual_seed(seed + 1)

    def batch(self, n):
        s = torch.empty(n, BLOCK + 1, dtype=torch.long)
        s[:, 0] = torch.randint(0, VOCAB, (n,), generator=self.g)
        for t in range(BLOCK):
            k = torch.multinomial(self.probs, n, replacement=True, generator=self.g)
            s[:, t + 1] = self.next[s[:, t], k]
        return s[:, :-1], s[:, 1:]


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.h = nn.Linear(d, 3 * d), nn.Linear(d, d), h
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.ln2(x))


class LM(nn.Module):
    def __init__(self, d=48, layers=2, heads=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(BLOCK, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln(x))


class Runner:
    def __init__(self, cfg, domain):
        self.cfg, self.domain = cfg, domain
        self.model = LM()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), weight_decay=0.01)
        self.step = 0
        if cfg.init_from:
            ckpt = torch.load(cfg.init_from)
            self.model.load_state_dict(ckpt["model"])
            self.step = ckpt["step"]
        self.val = domain.batch(128)

    def lr_at(self, step):
        c = self.cfg
        if step < c.warmup:
            return c.lr * (step + 1) / c.warmup
        return c.lr * 0.5 * (1 + math.cos(math.pi * (step - c.warmup) / (c.max_steps - c.warmup)))

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.val
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten()).item()
        self.model.train()
        return loss

    def fit(self):
        while self.step < self.cfg.max_steps:
            for group in self.opt.param_groups:
                group["lr"] = self.lr_at(self.step)
            x, y = self.domain.batch(self.cfg.batch)
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.step += 1
            if self.step % self.cfg.log_every == 0:
                print(f"{self.cfg.name} {self.step}/{self.cfg.max_steps} loss {loss.item():.3f} val {self.validate():.3f}")

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict(), "step": self.step}, path)


def main():
    torch.manual_seed(17)
    with tempfile.TemporaryDirectory(dir=".") as d:
        path = os.path.join(d, "base.pt")
        base = Runner(RunConfig("pretrain", 250, 3e-3), Domain(100))
        base.fit()
        base.save(path)
        tuned = Runner(RunConfig("adapt", 300, 2e-3, init_from=path), Domain(500))
        print(f"adapt: initial val {tuned.validate():.3f}")
        tuned.fit()
        print(f"adapt: final val {tuned.validate():.3f}")


if __name__ == "__main__":
    main()
