"""The hidden layers live in a plain Python list, so model.parameters() does not see them. They take part in the
forward pass, get gradients, and are never updated."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-optimizer-missing-parameters-list-mlp",
    "row": None,
    "title": "layers in a list instead of a ModuleList",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001", "C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-missing-parameters"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Network(nn.Module):
    def __init__(self, inputs, width, depth, outputs):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.hidden = [nn.Linear(width, width) for _ in range(depth)]
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.last(x)


def target(x):
    return torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Network(2, 40, 3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(300):
        x = torch.rand(64, 2) * 2 - 1
        loss = ((model(x) - target(x)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(step, f"{loss.item():.5f}")
