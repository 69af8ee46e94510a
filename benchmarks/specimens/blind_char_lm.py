import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "id": "blind-char-lm",
    "row": 42,
    "title": "the skip connection of every block adds a detached copy of its input, so no gradient flows along the residual stream",
    "family": "gpt",
    "kind": "silent",
    "contracts": [],
    "root_causes": ["residual-path-broken"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "crashes": False,
}

VOCAB, CTX, DIM, HEADS, DEPTH = 24, 24, 40, 4, 8
TABLE = torch.randint(0, VOCAB, (VOCAB, 2), generator=torch.Generator().manual_seed(8))


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class AddNorm(nn.Module):
    """pre-norm wrapper: input + inner(norm(input))"""

    def __init__(self, dim, inner):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inner = inner

    def forward(self, x):
        out = x.detach().clone()
        out += self.inner(self.norm(x))
        return out


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(1, CTX, DIM))
        layers = []
        for _ in range(DEPTH):
            layers.append(AddNorm(DIM, CausalAttention(DIM, HEADS)))
            layers.append(AddNorm(DIM, nn.Sequential(nn.Linear(DIM, 3 * DIM), nn.GELU(), nn.Linear(3 * DIM, DIM))))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.05)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx):
        x = self.tok(idx) + self.pos[:, : idx.size(1)]
        return self.head(self.norm(self.layers(x)))


def batch(n, gen):
    """noisy walks through a random successor table"""
    cols = [torch.randint(0, VOCAB, (n,), generator=gen)]
    for _ in range(CTX):
        nxt = TABLE[cols[-1], torch.randint(0, 2, (n,), generator=gen)]
        cols.append(nxt)
    z = torch.stack(cols, 1)
    return z[:, :-1], z[:, 1:]


def lr_at(step, total, peak=2e-3, warm=20):
    if step < warm:
        return peak * (step + 1) / warm
    return 0.1 * peak + 0.9 * peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(5)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    total = 200
    for step in range(total):
        for g in opt.param_groups:
            g["lr"] = lr_at(step, total)
        x, y = batch(16, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 25 == 0 or step == total - 1:
            print(step, f"{loss.item():.4f}")


main()
