"""Two towers learn to match two views of the same thing, with a learnt temperature. The loss begins at ln(batch)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "contrastive-two-towers",
    "title": "symmetric contrastive loss, learnt temperature",
    "family": "mlp",
    "trap": "the loss begins exactly at chance; targets are 0, 1, 2, ... in every batch; one parameter is a scalar",
    "needs": "cpu",
}


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 16))
        self.right = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 16))
        self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, a, b):
        a, b = F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)
        return self.log_scale.exp().clamp(max=100) * a @ b.T


class Views:
    def __init__(self, seed):
        source = torch.Generator().manual_seed(seed)
        self.to_left = torch.randn(6, 12, generator=source) / 6**0.5
        self.to_right = torch.randn(6, 20, generator=source) / 6**0.5

    def batch(self, size):
        hidden = torch.randn(size, 6)
        return hidden @ self.to_left + 0.1 * torch.randn(size, 12), hidden @ self.to_right + 0.1 * torch.randn(size, 20)


torch.set_num_threads(1)
torch.manual_seed(0)
views, model = Views(1), Towers()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
labels = torch.arange(32)
for step in range(200):
    logits = model(*views.batch(32))
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: {loss.item():.4f}  scale {model.log_scale.exp().item():.2f}")
