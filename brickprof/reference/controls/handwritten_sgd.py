"""No optimizer at all: weights are plain tensors in a list, moved by hand with a momentum written out."""

from itertools import pairwise

import torch

TRUTH = {
    "id": "handwritten-sgd",
    "title": "plain tensors and an update by hand",
    "family": "mlp",
    "trap": "there is no module and no optimizer; gradients are set to None by hand",
    "needs": "cpu",
}


def init(sizes):
    weights = []
    for a, b in pairwise(sizes):
        weights.append((torch.randn(a, b) * (2 / a) ** 0.5).requires_grad_())
        weights.append(torch.zeros(b, requires_grad=True))
    return weights


def forward(weights, x):
    for i in range(0, len(weights), 2):
        x = x @ weights[i] + weights[i + 1]
        if i + 2 < len(weights):
            x = torch.relu(x)
    return x


def step(weights, speeds, lr, momentum=0.9):
    with torch.no_grad():
        for weight, speed in zip(weights, speeds, strict=True):
            speed.mul_(momentum).add_(weight.grad)
            weight -= lr * speed
            weight.grad = None


torch.set_num_threads(1)
torch.manual_seed(0)
weights = init([3, 32, 32, 1])
speeds = [torch.zeros_like(weight) for weight in weights]
for it in range(300):
    x = torch.randn(64, 3)
    y = (x[:, :1] * x[:, 1:2] + x[:, 2:].abs()) + 0.05 * torch.randn(64, 1)
    loss = (forward(weights, x) - y).pow(2).mean()
    loss.backward()
    step(weights, speeds, lr=0.01)
    if it % 60 == 0:
        print(f"iteration {it}, loss {loss.item():.4f}")
