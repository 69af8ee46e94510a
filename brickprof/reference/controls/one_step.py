"""A smoke test, as people run it before the long run: one batch, one update."""

import torch
from torch import nn

TRUTH = {
    "id": "one-step",
    "title": "a single update",
    "family": "mlp",
    "trap": "there is no trend in one step",
    "needs": "cpu",
}

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x, y = torch.randn(16, 10), torch.randint(0, 3, (16,))
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
print(f"one step, loss {loss.item():.4f}")
