import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-char-gpt-d",
    "row": None,
    "title": "get_batch seeds its generator on every call, so each step trains on the very same batch",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["data-repeats"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class Config:
    vocab: int = 24
    block: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 16
    lr: float = 2e-3
    steps: int = 250
    warmup: int = 20
    seed: int = 1337


def make_text(c, n=40000):
    """Second-order Markov chain over the alphabet."""
    g = torch.Generator().manual_seed(0)
    table = torch.softmax(3.0 * torch.randn(c.vocab, c.vocab, generator=g), -1)
    shift = torch.randint(c.vocab, (c.vocab,), generator=g)
    u = torch.rand(n, generator=g).tolist()
    cdf = table.cumsum(-1)
    out = [0, 1]
    for i in range(n):
        row = (out[-1] + int(shift[out[-2]]) % 2) % c.vocab
        out.append(min(int(torch.searchsorted(cdf[row], u[i])), c.vocab - 1))
    return torch.tensor(out)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.qkv = nn.Linear(c.dim, 3 * c.dim)
        self.proj = nn.Linear(c.dim, c.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(c.dim), Attention(c)
        self.ln2 = nn.LayerNorm(c.dim)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.block, c.dim)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.ln = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for l in self.layers:
            x = l(x)
        logits = self.head(self.ln(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def get_batch(data, c, split):
    rng = torch.Generator().manual_seed(c.seed + (split == "val"))
    cut = int(0.9 * len(data))
    part = data[:cut] if split == "train" else data[cut:]
    ix = torch.randint(len(part) - c.block - 1, (c.batch,), generator=rng)
    x = torch.stack([part[i : i + c.block] for i in ix])
    y = torch.stack([part[i + 1 : i + 1 + c.block] for i in ix])
    return x, y


def main():
    c = Config()
    torch.manual_seed(c.seed)
    data = make_text(c, 20000)
    model = GPT(c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.1)

    def lr_at(s):
        if s < c.warmup:
            return (s + 1) / c.warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (s - c.warmup) / (c.steps - c.warmup)))

    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_at)
    for step in range(c.steps):
        x, y = get_batch(data, c, "train")
        _, loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 25 == 0 or step == c.steps - 1:
            model.eval()
            with torch.no_grad():
                _, vl = model(*get_batch(data, c, "val"))
            model.train()
            print(f"step {step} train {loss.item():.4f} val {vl.item():.4f}")


if __name__ == "__main__":
    main()
