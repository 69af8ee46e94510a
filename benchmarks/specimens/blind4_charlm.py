import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "blind4-charlm",
    "title": "The cosine schedule's horizon is the length of one epoch, so after the first of six epochs the learning rate is zero and the loss stalls.",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 40,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Args:
    block: int = 32
    dim: int = 48
    heads: int = 4
    layers: int = 2
    batch_size: int = 16
    epochs: int = 6
    lr: float = 3e-3
    warmup_steps: int = 6
    clip: float = 1.0


class Text(Dataset):
    def __init__(self, n, block, seed):
        g = torch.Generator().manual_seed(seed)
        words = ["tra", "lo", "mira", "sen", "ku", "velo", "dan", "pi"]
        follow = [[1, 3], [2, 4], [5, 0], [6, 7], [0, 2], [3, 1], [7, 4], [5, 6]]
        w, parts = 0, []
        picks = torch.randint(0, 2, (n * block,), generator=g)
        for p in picks.tolist():
            parts.append(words[w])
            w = follow[w][p]
        s = " ".join(parts)[: n * block + 1]
        self.vocab = sorted(set(" ".join(words)))
        lut = {c: i for i, c in enumerate(self.vocab)}
        self.ids = torch.tensor([lut[c] for c in s])
        self.n, self.block = n, block

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        c = self.ids[i * self.block: i * self.block + self.block + 1]
        return c[:-1], c[1:]


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.h = a.heads
        self.ln1, self.ln2 = nn.LayerNorm(a.dim), nn.LayerNorm(a.dim)
        self.qkv = nn.Linear(a.dim, 3 * a.dim)
        self.out = nn.Linear(a.dim, a.dim)
        self.ff = nn.Sequential(nn.Linear(a.dim, 4 * a.dim), nn.GELU(), nn.Linear(4 * a.dim, a.dim))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = [z.reshape(B, T, self.h, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(D, -1)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.out(y)
        return x + self.ff(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, a.dim), nn.Embedding(a.block, a.dim)
        self.h = nn.Sequential(*[Block(a) for _ in range(a.layers)])
        self.ln_f = nn.LayerNorm(a.dim)
        self.lm_head = nn.Linear(a.dim, vocab, bias=False)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.size(1)]
        logits = self.lm_head(self.ln_f(self.h(h)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def cosine_with_warmup(opt, warmup, total):
    def f(step):
        if step < warmup:
            return (step + 1) / warmup
        r = min(1.0, (step - warmup) / max(1, total - warmup))
        return 0.5 * (1 + math.cos(math.pi * r))
    return torch.optim.lr_scheduler.LambdaLR(opt, f)


def main():
    a = Args()
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    ds = Text(640, a.block, 3)
    loader = DataLoader(ds, batch_size=a.batch_size, shuffle=True)
    model = GPT(len(ds.vocab), a)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.1)
    sched = cosine_with_warmup(opt, a.warmup_steps, len(loader))
    step = 0
    for epoch in range(a.epochs):
        for x, y in loader:
            loss = model(x, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), a.clip)
            opt.step()
            sched.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
            step += 1


if __name__ == "__main__":
    main()
