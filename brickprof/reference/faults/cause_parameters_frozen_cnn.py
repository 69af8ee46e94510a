"""The encoder is frozen for the first epoch and should then be released by `model.encoder.requires_grad = True`,
which only sets an attribute of the module. All of the convolutions stay as they were initialised."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-parameters-frozen-cnn",
    "row": None,
    "title": "the encoder is never unfrozen",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["parameters-frozen"],
    "bricks": ["encoder", "encoder.0", "encoder.2"],
    "first_step": 16,
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


def gratings(count):
    labels = torch.randint(0, 4, (count,))
    grid = torch.arange(10.0)
    rows, columns = grid[:, None].expand(10, 10), grid.expand(10, 10)
    plans = torch.stack([rows, columns, rows + columns, rows - columns])
    phase = torch.rand(count, 1, 1) * 6
    images = torch.sin(1.5 * plans[labels] + phase) + 0.2 * torch.randn(count, 10, 10)
    return TensorDataset(images.unsqueeze(1), labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    for parameter in model.encoder.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(gratings(512), batch_size=32, shuffle=True)
    for epoch in range(10):
        if epoch == 1:
            model.encoder.requires_grad = True
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
