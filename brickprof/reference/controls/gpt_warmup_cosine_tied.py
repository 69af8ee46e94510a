"""A small GPT learns to copy and to count: tied embeddings, warm-up from zero, cosine decay, clipping by norm."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "gpt-warmup-cosine-tied",
    "title": "tied head, warm-up from zero, cosine, clip",
    "family": "gpt",
    "trap": "the first update has a learning rate near zero; one tensor has two names",
    "needs": "cpu",
}
VOCABULARY, CONTEXT, WIDTH = 24, 24, 48


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.heads = heads

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(self._init)
        self.head.weight = self.tokens.weight

    def _init(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(size):
    """Counting up by one, two or three, modulo the vocabulary."""
    start, stride = torch.randint(0, VOCABULARY, (size, 1)), torch.randint(1, 4, (size, 1))
    return (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY


def lr_at(step, peak=3e-3, warmup=15, steps=120):
    if step < warmup:
        return peak * step / warmup
    return 0.1 * peak + 0.45 * peak * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(120):
    for group in optimizer.param_groups:
        group["lr"] = lr_at(step)
    ids = batch(16)
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 119:
        print(f"step {step} loss {loss.item():.4f} norm {norm:.3f}")
