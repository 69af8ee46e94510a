"""A network for ten classes gets a new head for three after the optimizer was built. The optimizer keeps the old
head; the new one, the only part that really had to learn, never moves."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-optimizer-stale-parameters-head-cnn",
    "row": None,
    "title": "the head is replaced after the optimizer was made",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001", "C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-stale-parameters", "optimizer-missing-parameters"],
    "bricks": ["fc"],
    "first_step": 0,
    "needs": "cpu",
}


class Backbone(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def colours(count):
    labels = torch.randint(0, 3, (count,))
    images = 0.5 * torch.randn(count, 3, 8, 8)
    images[torch.arange(count), labels] += 0.6
    return TensorDataset(images, labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Backbone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model.fc = nn.Linear(model.fc.in_features, 3)
    loader = DataLoader(colours(600), batch_size=30, shuffle=True)
    for epoch in range(6):
        total = 0.0
        for x, y in loader:
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
