"""Cosine annealing with warm restarts: the learning rate jumps back up twice, and the loss with it for a while."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "warm-restarts",
    "title": "warm restarts of a cosine schedule",
    "family": "mlp",
    "trap": "the learning rate jumps up by a factor of a hundred in the middle of the run",
    "needs": "cpu",
}


def checkerboard(count):
    x = 4 * torch.rand(count, 2) - 2
    return x, ((x[:, 0].floor() + x[:, 1].floor()) % 2).long()


torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(*checkerboard(1000)), batch_size=50, shuffle=True)
model = nn.Sequential(
    nn.Linear(2, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=40, T_mult=2, eta_min=1e-4)
for epoch in range(14):
    total = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.4f} lr {scheduler.get_last_lr()[0]:.5f}")
