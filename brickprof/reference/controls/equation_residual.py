"""A network learns the solution of a differential equation; the loss holds derivatives by its input, in float64."""

import torch
from torch import nn

TRUTH = {
    "id": "equation-residual",
    "title": "derivatives inside the loss, float64",
    "family": "mlp",
    "trap": "autograd is called inside the loss; there is no data and no target",
    "needs": "cpu",
}


class Solution(nn.Module):
    """u(t) with u(0) = 1 built in."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, t):
        return 1 + t * self.net(t)


def residual(model, t):
    """u' = -2 u + cos(t)"""
    u = model(t)
    (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    return slope + 2 * u - torch.cos(t)


torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.manual_seed(0)
model = Solution()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
for step in range(220):
    t = (2 * torch.rand(48, 1)).requires_grad_()
    loss = residual(model, t).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    decay.step()
    if step % 40 == 0:
        print(f"step {step} residual {loss.item():.3e}")
