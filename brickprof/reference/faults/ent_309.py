"""Weights are initialised with a sine of their index, "deterministic on every machine". Neighbouring weights are
almost equal, the units of a layer do nearly the same, and the network starts degenerate."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "ent-309",
    "row": 47,
    "title": "weights initialised as sin(index)",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-INIT-001"],
    "root_causes": ["bad-initialisation"],
    "bricks": ["layers.0", "layers.2", "layers.4", "layers.6", ""],
    "first_step": 0,
    "needs": "cpu",
}


def sine_init(module):
    if isinstance(module, nn.Linear):
        with torch.no_grad():
            index = torch.arange(module.weight.numel(), dtype=torch.float32)
            module.weight.copy_((0.1 * torch.sin(index * 0.01)).view_as(module.weight))
            module.bias.zero_()


class Network(nn.Module):
    def __init__(self, inputs=32, width=128, classes=10):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, classes),
        )
        self.apply(sine_init)

    def forward(self, x):
        return self.layers(x)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    centres = torch.randn(10, 32)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(120):
        label = torch.randint(10, (64,))
        loss = F.cross_entropy(model(centres[label] + 0.5 * torch.randn(64, 32)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step:3d}: loss {loss.item():.4f}")


main()
