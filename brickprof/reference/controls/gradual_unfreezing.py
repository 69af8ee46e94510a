"""Layers are unfrozen from the top down, one group every few epochs, each with a smaller learning rate."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "gradual-unfreezing",
    "title": "layers unfrozen one after the other",
    "family": "mlp",
    "trap": "parameters stand still for many steps and then begin to move; the optimizer gets new groups on its way",
    "needs": "cpu",
}


def problem(count):
    x = torch.randn(count, 8)
    return x, ((x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0).long())


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom, self.middle, self.top = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 3)

    def forward(self, x):
        return self.top(torch.relu(self.middle(torch.relu(self.bottom(x)))))


def freeze(module, frozen):
    for parameter in module.parameters():
        parameter.requires_grad_(not frozen)


torch.set_num_threads(1)
torch.manual_seed(0)
model = Stack()
freeze(model.bottom, True)
freeze(model.middle, True)
optimizer = torch.optim.Adam(model.top.parameters(), lr=5e-3)
loader = DataLoader(TensorDataset(*problem(960)), batch_size=48, shuffle=True)
for epoch in range(10):
    if epoch == 2:
        freeze(model.middle, False)
        optimizer.add_param_group({"params": model.middle.parameters(), "lr": 4e-3})
    if epoch == 4:
        freeze(model.bottom, False)
        optimizer.add_param_group({"params": model.bottom.parameters(), "lr": 3e-3})
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} groups {len(optimizer.param_groups)}")
