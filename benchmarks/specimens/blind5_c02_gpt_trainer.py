import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "blind5-c02-gpt-trainer",
    "row": None,
    "title": "OneCycleLR is built but scheduler.step() sits in an epoch hook that the step-based loop never calls: lr stays at max/25",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-not-stepped"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    vocab: int = 40
    block: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 16
    accum: int = 2
    max_lr: float = 3e-3
    max_steps: int = 220
    weight_decay: float = 0.05
    clip: float = 1.0
    log_every: int = 20
    seed: int = 3


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))
        self.h = c.heads

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.block, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm, self.head = nn.LayerNorm(c.dim), nn.Linear(c.dim, c.vocab, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for b in self.blocks:
            x = b(x)
        logits = self.head(self.norm(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def corpus(c, n):
    g = torch.Generator().manual_seed(0)
    trans = torch.stack([torch.randperm(c.vocab, generator=g)[:3] for _ in range(c.vocab)])
    seqs = torch.empty(n, c.block + 1, dtype=torch.long)
    seqs[:, 0] = torch.randint(0, c.vocab, (n,), generator=g)
    for t in range(1, c.block + 1):
        pick = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), n, replacement=True, generator=g)
        seqs[:, t] = trans[seqs[:, t - 1], pick]
    return seqs


class Trainer:
    def __init__(self, cfg, model, train, val):
        self.cfg, self.model, self.train_set, self.val_set = cfg, model, train, val
        decay = [p for p in model.parameters() if p.dim() >= 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": cfg.weight_decay},
                                            {"params": rest, "weight_decay": 0.0}], lr=cfg.max_lr, betas=(0.9, 0.95))
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=cfg.max_lr, total_steps=cfg.max_steps, pct_start=0.1)
        self.step = 0

    def on_epoch_end(self):
        self.scheduler.step()

    def batches(self):
        loader = DataLoader(self.train_set, batch_size=self.cfg.batch, shuffle=True, drop_last=True)
        while True:
            yield from loader

    def fit(self):
        stream = self.batches()
        self.model.train()
        while self.step < self.cfg.max_steps:
            total = 0.0
            self.optimizer.zero_grad(set_to_none=True)
            for _ in range(self.cfg.accum):
                (seq,) = next(stream)
                _, loss = self.model(seq[:, :-1], seq[:, 1:])
                (loss / self.cfg.accum).backward()
                total += loss.item() / self.cfg.accum
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.optimizer.step()
            if self.step % self.cfg.log_every == 0:
                print(f"{self.step:4d} loss {total:.4f} |g| {norm:.2f} val {self.evaluate():.4f}")
            self.step += 1

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.model(s[:, :-1], s[:, 1:])[1].item() for (s,) in DataLoader(self.val_set, batch_size=128)]
        self.model.train()
        return sum(losses) / len(losses)


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data = corpus(cfg, 6256)
    trainer = Trainer(cfg, GPT(cfg), TensorDataset(data[:6000]), TensorDataset(data[6000:]))
    trainer.fit()
    final = trainer.evaluate()
    print(f"final val {final:.4f} ppl {math.exp(final):.2f}")
