"""Low-rank adapters in a frozen network. The second factor begins at zero, so the first has no gradient at first."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "lora-adapters",
    "title": "low-rank adapters, second factor zero at first",
    "family": "gpt",
    "trap": "the gradient of every first factor is exactly zero in the first step; the whole base is frozen",
    "needs": "cpu",
}


class Adapted(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


class Reader(nn.Module):
    def __init__(self, tokens=16, width=32):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, tokens)

    def forward(self, ids):
        x = self.embed(ids)
        mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)
        return self.out(self.norm(x + mixed))


def adapt(model):
    for parameter in model.parameters():
        parameter.requires_grad = False
    for name in ("query", "key", "value", "out"):
        setattr(model, name, Adapted(getattr(model, name)))
    return [p for p in model.parameters() if p.requires_grad]


def batch(size):
    start = torch.randint(0, 16, (size, 1))
    return (start + 3 * torch.arange(13)) % 16


torch.set_num_threads(1)
torch.manual_seed(0)
model = Reader()
trained = adapt(model)
print(f"{sum(p.numel() for p in trained)} of {sum(p.numel() for p in model.parameters())} parameters are trained")
optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0)
for step in range(150):
    ids = batch(16)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss.item():.4f}")
