"""The fast attention kernel is called inside try and any error gives zeros instead. The kernel fails in every call (a
wrong keyword), so attention adds nothing at all and its weights never get a gradient."""

import logging

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-silent-fallback-attention",
    "row": None,
    "title": "an except clause returns zeros",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001", "C-GRADFLOW-001"],
    "root_causes": ["silent-fallback", "no-gradient-path"],
    "bricks": ["attention", "attention.qkv", "attention.out"],
    "first_step": 0,
    "needs": "cpu",
}

log = logging.getLogger("attention")


def fast_attention(q, k, v):
    try:
        return F.scaled_dot_product_attention(q, k, v, causal=True)
    except TypeError as error:
        log.debug("fast attention is not available: %s", error)
        return torch.zeros_like(v)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.out(fast_attention(q, k, v))


class Model(nn.Module):
    def __init__(self, vocab=12, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(0.1 * torch.randn(8, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position
        x = x + self.attention(self.norm1(x))
        return self.head(x + self.mlp(self.norm2(x)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        ids = torch.randint(0, 12, (32, 8))
        previous = torch.cat([ids[:, :1], ids[:, :-1]], dim=1)
        loss = F.cross_entropy(model(ids).flatten(0, 1), previous.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}")
