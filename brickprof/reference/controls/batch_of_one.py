"""Online learning: one sample a step. The loss of a single sample jumps by orders of magnitude all the time."""

import torch
from torch import nn

TRUTH = {
    "id": "batch-of-one",
    "title": "one sample a step",
    "family": "mlp",
    "trap": "losses jump between 1e-6 and 1 from step to step; only their average falls",
    "needs": "cpu",
}

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 24), nn.Softplus(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
direction, smooth = torch.tensor([[1.0], [-2.0], [1.5]]), None
for step in range(900):
    x = torch.rand(1, 3) * 2 - 1
    y = torch.tanh(x @ direction) + 0.05 * torch.randn(1, 1)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
    if step % 150 == 0:
        print(f"step {step} smooth loss {smooth:.4f}")
