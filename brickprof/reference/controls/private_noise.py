"""Gradients are clipped sample by sample, summed and made noisy, as differential privacy asks for."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

TRUTH = {
    "id": "private-noise",
    "title": "per-sample clipping and noise, gradients set by hand",
    "family": "mlp",
    "trap": "there is no backward() at all; .grad is written by hand and holds much noise",
    "needs": "cpu",
}


def sample_loss(parameters, model, x, y):
    return F.cross_entropy(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))


def private_gradients(model, x, y, bound=1.0, noise=0.5):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    per_sample = vmap(grad(sample_loss), in_dims=(None, None, 0, 0))(parameters, model, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample.values()]).norm(dim=0)
    scale = (bound / (norms + 1e-6)).clamp(max=1.0)
    for name, parameter in model.named_parameters():
        total = torch.einsum("n,n...->...", scale, per_sample[name])
        parameter.grad = (total + noise * bound * torch.randn_like(total)) / len(x)


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(150):
    x = torch.randn(64, 6)
    y = (x[:, 0] - x[:, 1] > 0).long()
    private_gradients(model, x, y)
    optimizer.step()
    optimizer.zero_grad()
    if step % 30 == 0:
        with torch.no_grad():
            print(f"step {step} loss {F.cross_entropy(model(x), y).item():.4f}")
