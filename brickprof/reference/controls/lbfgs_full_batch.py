"""Full-batch L-BFGS with a line search: the closure is called several times in each step, always on the same data."""

import torch
from torch import nn

TRUTH = {
    "id": "lbfgs-full-batch",
    "title": "L-BFGS with strong Wolfe line search",
    "family": "mlp",
    "trap": "many backward passes in a step, on one batch that never changes",
    "needs": "cpu",
}

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.rand(200, 2) * 4 - 2
y = torch.sin(x[:, :1]) * torch.cos(x[:, 1:]) + 0.02 * torch.randn(200, 1)
model = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=10, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for step in range(12):
    loss = optimizer.step(closure)
    print(f"step {step} loss {loss.item():.6f}")
