"""Sharpness-aware minimisation: a first backward finds the worst place nearby, a second one there gives the update."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "sharpness-aware",
    "title": "two backward passes to an update, the first one thrown away",
    "family": "mlp",
    "trap": "gradients are cleared between the two backward passes of an update; weights move there and back",
    "needs": "cpu",
}


class SAM:
    def __init__(self, parameters, base, rho=0.05):
        self.parameters, self.base, self.rho = list(parameters), base, rho
        self.shift = []

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm() + 1e-12
        self.shift = [self.rho * p.grad / norm for p in self.parameters]
        for parameter, shift in zip(self.parameters, self.shift, strict=True):
            parameter.add_(shift)
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for parameter, shift in zip(self.parameters, self.shift, strict=True):
            parameter.sub_(shift)
        self.base.step()
        self.base.zero_grad()


torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(800, 5)
y = ((x[:, 0] ** 2 + x[:, 1] ** 2) > 1.5).long()
loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 2))
sam = SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
for epoch in range(8):
    for inputs, labels in loader:
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        sam.climb()
        F.cross_entropy(model(inputs), labels).backward()
        sam.descend()
    print(f"epoch {epoch} loss {loss.item():.4f}")
