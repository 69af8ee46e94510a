import math
from dataclasses import dataclass
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind4-bert_masking",
    "title": "The masked-LM loss is averaged per sequence by its number of masked tokens, which is zero for an occasional sequence: 0/0 makes the loss NaN.",
    "family": "other",
    "kind": "numeric",
    "contracts": [],
    "root_causes": ["division-by-zero"],
    "bricks": [],
    "first_step": 22,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    vocab: int = 64
    seq: int = 48
    d_model: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 24
    steps: int = 130
    lr: float = 1e-3
    warmup: int = 30
    mask_prob: float = 0.15
    seed: int = 5


PAD, MASK = 0, 1


def corpus(cfg, n=2000):
    rng = np.random.default_rng(cfg.seed)
    nxt = rng.integers(2, cfg.vocab, size=(cfg.vocab, 3))
    out = np.zeros((n, cfg.seq), dtype=np.int64)
    for i in range(n):
        tok = rng.integers(2, cfg.vocab)
        for j in range(rng.integers(40, cfg.seq + 1)):
            out[i, j] = tok
            tok = nxt[tok, 0 if rng.random() < 0.85 else rng.integers(1, 3)]
    return torch.from_numpy(out)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, h, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, pad):
        y = self.ln1(x)
        x = x + self.attn(y, y, y, key_padding_mask=pad, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class TinyBert(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.d_model, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(cfg.seq, cfg.d_model) * 0.02)
        self.blocks = nn.ModuleList(Block(cfg.d_model, cfg.heads) for _ in range(cfg.layers))
        self.ln = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(cfg.d_model, cfg.vocab)
        nn.init.normal_(self.tok.weight, std=0.05)

    def forward(self, ids):
        pad = ids == PAD
        x = self.tok(ids) + self.pos
        for b in self.blocks:
            x = b(x, pad)
        return self.head(self.ln(x))


def corrupt(ids, cfg, gen):
    pick = (torch.rand(ids.shape, generator=gen) < cfg.mask_prob) & (ids != PAD)
    action = torch.rand(ids.shape, generator=gen)
    inp = ids.clone()
    inp[pick & (action < 0.8)] = MASK
    rnd = torch.randint(2, cfg.vocab, ids.shape, generator=gen)
    swap = pick & (action >= 0.8) & (action < 0.9)
    inp[swap] = rnd[swap]
    return inp, pick


def mlm_loss(logits, ids, pick):
    nll = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none") * pick
    return (nll.sum(1) / pick.sum(1)).mean()


def main():
    cfg = Config()
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed + 8)
    data = corpus(cfg)
    model = TinyBert(cfg)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=cfg.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / cfg.warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / cfg.steps))))
    for step in range(cfg.steps):
        ids = data[torch.randint(0, len(data), (cfg.batch,), generator=gen)]
        inp, pick = corrupt(ids, cfg, gen)
        loss = mlm_loss(model(inp), ids, pick)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0 or step == cfg.steps - 1:
            print(f"step {step:4d} mlm {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
