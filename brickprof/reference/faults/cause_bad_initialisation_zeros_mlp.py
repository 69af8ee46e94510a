"""All weights of an MLP start at zero. Hidden units are all alike and dead to the gradient, so only the last bias
learns and the loss stays where it was."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-bad-initialisation-zeros-mlp",
    "row": None,
    "title": "all weights start at zero",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-INIT-001", "C-GRADFLOW-001"],
    "root_causes": ["bad-initialisation"],
    "bricks": ["hidden1", "hidden2", "out"],
    "first_step": 0,
    "needs": "cpu",
}


class MLP(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.hidden1 = nn.Linear(inputs, 48)
        self.hidden2 = nn.Linear(48, 48)
        self.out = nn.Linear(48, classes)

    def forward(self, x):
        x = torch.relu(self.hidden1(x))
        return self.out(torch.relu(self.hidden2(x)))


def weights_init(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.0)
        nn.init.constant_(module.bias, 0.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(900, 6)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True)
    model = MLP(6, 3)
    model.apply(weights_init)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(8):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
