from dataclasses import dataclass
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"id": "blind5-a36-clip-bf16", "title": "two-encoder contrastive training with learned temperature, bf16 autocast, parameter groups and warm-up",
           "family": "gpt", "needs": "cpu",
           "trap": "loss starts above ln(batch), logit scale grows, bf16 activations, temperature clamped under no_grad"}


@dataclass
class Conf:
    steps: int = 260
    batch: int = 64
    dim: int = 48
    vocab: int = 64
    length: int = 12
    lr: float = 2e-3
    warmup: int = 25


class SeqEncoder(nn.Module):
    def __init__(self, c: Conf):
        super().__init__()
        self.emb = nn.Embedding(c.vocab + 1, c.dim, padding_idx=0)
        self.pos = nn.Parameter(0.02 * torch.randn(1, c.length, c.dim))
        lay = nn.TransformerEncoderLayer(c.dim, 4, 2 * c.dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(lay, 1, enable_nested_tensor=False)
        self.out = nn.Linear(c.dim, 32)

    def forward(self, ids):
        pad = ids == 0
        h = self.enc(self.emb(ids) + self.pos, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        return self.out((h * keep).sum(1) / keep.sum(1))


class VecEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 32))

    def forward(self, v):
        return self.net(v)


class Clip(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.seq, self.vec = SeqEncoder(c), VecEncoder()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, ids, v):
        a = F.normalize(self.seq(ids).float(), dim=-1)
        b = F.normalize(self.vec(v).float(), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


class World:
    def __init__(self, c):
        self.c = c
        self.table = torch.randn(c.vocab + 1, 24)
        self.table[0] = 0

    def batch(self, n):
        ids = torch.randint(1, self.c.vocab + 1, (n, self.c.length))
        lens = torch.randint(4, self.c.length + 1, (n, 1))
        ids = ids.masked_fill(torch.arange(self.c.length)[None] >= lens, 0)
        v = self.table[ids].sum(1) / lens.sqrt() + 0.1 * torch.randn(n, 24)
        return ids, v


def loss_fn(logits):
    t = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, t) + F.cross_entropy(logits.t(), t))


def main():
    c = Conf()
    torch.manual_seed(23)
    w, m = World(c), Clip(c)
    val = w.batch(128)
    decay = [p for p in m.parameters() if p.ndim >= 2]
    other = [p for p in m.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}], lr=c.lr)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / c.warmup if s < c.warmup else 0.5 * (1 + math.cos(math.pi * (s - c.warmup) / (c.steps - c.warmup))))
    for s in range(c.steps):
        ids, v = w.batch(c.batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = m(ids, v)
        loss = loss_fn(logits.float())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            m.logit_scale.clamp_(max=math.log(100))
        if s % 40 == 0 or s == c.steps - 1:
            m.eval()
            with torch.no_grad():
                r1 = (m(*val).argmax(1) == torch.arange(128)).float().mean().item()
            m.train()
            print(f"{s:4d} loss {loss.item():.4f} scale {m.logit_scale.exp().item():.1f} recall@1 {r1:.3f}")


if __name__ == "__main__":
    main()
