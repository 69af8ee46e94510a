"""Targets are of the order of a thousandth, so losses are a millionth and gradients small from the first step on."""

import torch
from torch import nn

TRUTH = {
    "id": "tiny-losses",
    "title": "regression with losses of 1e-6 and below",
    "family": "mlp",
    "trap": "losses and gradients look like nothing, and still fall by a factor of fifty",
    "needs": "cpu",
}


def strain(count):
    """Displacements in metres of a beam under a load."""
    load, place = torch.rand(count, 1), torch.rand(count, 1)
    return torch.cat([load, place], 1) * 2 - 1, 4e-3 * load * place**2 * (3 - place) + 2e-5 * torch.randn(count, 1)


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
with torch.no_grad():
    model[2].weight.mul_(0.01)
    model[2].bias.zero_()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-10)
for step in range(280):
    x, y = strain(64)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.3e}")
