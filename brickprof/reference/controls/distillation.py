"""A small student learns from a larger teacher, which is frozen, with softened targets and a share of true labels."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "distillation",
    "title": "a frozen teacher and softened targets",
    "family": "mlp",
    "trap": "the teacher runs without gradients in every step and never moves; probabilities are the targets",
    "needs": "cpu",
}


def make(width, depth):
    layers, size = [], 6
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, 4))


def data(count):
    x = torch.randn(count, 6)
    return x, (2 * (x[:, 0] > 0).long() + (x[:, 1] + x[:, 2] > 0).long())


def fit(model, steps, loss_of, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        x, y = data(64)
        loss = loss_of(model(x), x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")


def main():
    torch.manual_seed(0)
    teacher = make(64, 2)
    fit(teacher, 150, lambda out, x, y: F.cross_entropy(out, y), lr=3e-3)
    teacher.eval().requires_grad_(False)
    temperature = 2.0

    def distil(out, x, y):
        with torch.no_grad():
            soft = F.softmax(teacher(x) / temperature, dim=1)
        matched = F.kl_div(F.log_softmax(out / temperature, dim=1), soft, reduction="batchmean") * temperature**2
        return 0.8 * matched + 0.2 * F.cross_entropy(out, y)

    fit(make(12, 1), 200, distil, lr=1e-2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
