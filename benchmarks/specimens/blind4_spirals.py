import numpy as np
import torch
from torch import nn

TRUTH = {
    "id": "blind4-spirals",
    "title": "Healthy full-batch training on a tiny two-spirals set.",
    "family": "mlp",
    "needs": "cpu",
    "trap": "the very same unshuffled batch of 200 points is used at every step, the training loss goes to nearly zero and its gradients become tiny",
}

np.random.seed(30)
torch.manual_seed(30)
torch.set_num_threads(1)


def spirals(n, noise):
    t = np.sqrt(np.random.rand(n)) * 2.2 * np.pi
    sign = np.random.randint(0, 2, n)
    ang = t + np.pi * sign
    pts = np.stack([t * np.cos(ang), t * np.sin(ang)], 1) / 4 + noise * np.random.randn(n, 2)
    return torch.tensor(pts, dtype=torch.float32), torch.tensor(sign, dtype=torch.float32)


X, Y = spirals(200, 0.03)
XT, YT = spirals(500, 0.03)
net = nn.Sequential(nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
bce = nn.BCEWithLogitsLoss()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)

for it in range(400):
    loss = bce(net(X).squeeze(1), Y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 40 == 0 or it == 399:
        with torch.no_grad():
            acc = ((net(XT).squeeze(1) > 0).float() == YT).float().mean().item()
        print(it, f"loss {loss.item():.5f}", f"test acc {acc:.3f}")
