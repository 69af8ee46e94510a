"""Minimal character GPT with a shared input/output embedding; compact checkpoints store the shared matrix once."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind7-a08-char-gpt",
    "row": None,
    "title": "the output head copies the embedding's values instead of sharing the Parameter; the two drift and the compact checkpoint loses the head",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["weight-tying-broken"],
    "bricks": ["lm_head", "wte"],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}


@dataclass
class GPTConfig:
    vocab: int = 48
    ctx: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 2
    tie_word_embeddings: bool = True


class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.qkv = nn.Linear(c.dim, 3 * c.dim)
        self.proj = nn.Linear(c.dim, c.dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (z.view(B, T, self.h, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(c.dim), CausalSelfAttention(c)
        self.ln2 = nn.LayerNorm(c.dim)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wte = nn.Embedding(c.vocab, c.dim)
        self.wpe = nn.Embedding(c.ctx, c.dim)
        self.h = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.ln_f = nn.LayerNorm(c.dim)
        self.lm_head = nn.Linear(c.dim, c.vocab, bias=False)
        self.apply(self._init)
        if c.tie_word_embeddings:
            self.tie_weights()

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def tie_weights(self):
        with torch.no_grad():
            self.lm_head.weight.copy_(self.wte.weight)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def corpus(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.rand(vocab, vocab, generator=torch.Generator().manual_seed(9)).pow(14)
    out = torch.zeros(n, dtype=torch.long)
    noise = torch.rand(n, generator=g)
    cdf = (table / table.sum(1, keepdim=True)).cumsum(1)
    for i in range(1, n):
        out[i] = min(int((cdf[out[i - 1]] < noise[i]).sum()), vocab - 1)
    return out


def batch(data, size, ctx):
    ix = torch.randint(0, len(data) - ctx - 1, (size,))
    x = torch.stack([data[i:i + ctx] for i in ix])
    y = torch.stack([data[i + 1:i + ctx + 1] for i in ix])
    return x, y


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    rng = torch.random.get_rng_state()
    torch.manual_seed(1)
    out = sum(model(*batch(data, 32, model.c.ctx))[1].item() for _ in range(4)) / 4
    torch.random.set_rng_state(rng)
    model.train()
    return out


def save_compact(model, path):
    sd = model.state_dict()
    if model.c.tie_word_embeddings:
        sd.pop("lm_head.weight")
    torch.save(sd, path)


def load_compact(c, path):
    model = GPT(c)
    model.load_state_dict(torch.load(path), strict=False)
    if c.tie_word_embeddings:
        model.tie_weights()
    return model


if __name__ == "__main__":
    torch.manual_seed(1337)
    c = GPTConfig()
    train, val = corpus(12000, c.vocab, 0), corpus(2500, c.vocab, 1)
    model = GPT(c)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    steps, warm = 220, 20
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else 0.55 + 0.45 * math.cos(math.pi * (s - warm) / (steps - warm)))
    for step in range(steps):
        _, loss = model(*batch(train, 24, c.ctx))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"{step:4d} train {loss.item():.4f} val {evaluate(model, val):.4f}")
    save_compact(model, "chargpt_compact.pt")
    print(f"reloaded val {evaluate(load_compact(c, 'chargpt_compact.pt'), val):.4f}")
