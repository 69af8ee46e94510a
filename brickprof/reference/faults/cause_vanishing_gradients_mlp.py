"""Twelve sigmoid layers without normalisation or skips: the gradient loses most of its size in every layer. The first
layers get next to nothing and the loss stays at chance."""

from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-vanishing-gradients-mlp",
    "row": None,
    "title": "twelve sigmoid layers",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-RESIDUAL-001", "C-GRADFLOW-001"],
    "root_causes": ["vanishing-gradients"],
    "bricks": ["layers.0", "layers.1", "layers.2", "layers.3", "layers.4"],
    "first_step": 0,
    "needs": "cpu",
}


class Deep(nn.Module):
    def __init__(self, inputs, hidden, classes, depth, activation):
        super().__init__()
        sizes = [inputs] + [hidden] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(hidden, classes)
        self.activation = activation

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.head(x)


def two_rings(count):
    radius = torch.randint(0, 2, (count,))
    angle = torch.rand(count) * 2 * torch.pi
    points = torch.stack([angle.cos(), angle.sin()], 1) * (1.0 + radius[:, None]) + 0.1 * torch.randn(count, 2)
    return points, radius


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*two_rings(1000)), batch_size=50, shuffle=True)
    model = Deep(2, 32, 2, depth=12, activation=torch.sigmoid)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(10):
        right = 0
        for x, y in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((logits.argmax(1) == y).sum())
        first = model.layers[0].weight.grad.norm()
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {right / 1000:.3f} first layer |g| {first:.1e}")
