"""A tanh network whose weights are drawn with standard deviation 1 for a fan-in of 128: nearly every unit sits at -1
or +1, where tanh has no slope, and the lower layers get almost no gradient."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-saturated-activations-tanh",
    "row": None,
    "title": "tanh units stuck at their bounds",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-ACT-001", "C-INIT-001", "C-GRADFLOW-001"],
    "root_causes": ["saturated-activations", "bad-initialisation"],
    "bricks": ["act1", "act2", "act3", "fc1", "fc2", "fc3"],
    "first_step": 0,
    "needs": "cpu",
}


class TanhNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.fc1, self.act1 = nn.Linear(16, width), nn.Tanh()
        self.fc2, self.act2 = nn.Linear(width, width), nn.Tanh()
        self.fc3, self.act3 = nn.Linear(width, width), nn.Tanh()
        self.out = nn.Linear(width, 2)
        for layer in (self.fc1, self.fc2, self.fc3):
            nn.init.normal_(layer.weight, std=3.0)

    def forward(self, x):
        x = self.act1(self.fc1(x))
        x = self.act2(self.fc2(x))
        return self.out(self.act3(self.fc3(x)))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(13)
    x = torch.randn(800, 16)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
    loader = DataLoader(TensorDataset(x[:600], y[:600]), batch_size=40, shuffle=True)
    model = TanhNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(12):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (model(x[600:]).argmax(1) == y[600:]).float().mean()
        print(f"epoch {epoch} loss {loss.item():.4f} held-out accuracy {right.item():.3f}")


if __name__ == "__main__":
    main()
