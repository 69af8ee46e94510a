"""A CNN with Adam whose zero_grad stands before the epoch loop, not inside the batch loop. Gradients pile up over a
whole epoch and over all of the epochs after it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-missing-zero-grad-cnn",
    "row": None,
    "title": "zero_grad once, before the loop",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-GA-001", "C-TRAINSTABLE-001"],
    "root_causes": ["missing-zero-grad"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(12 * 9, 5)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def bars(count):
    """Horizontal bars: the class is how many there are."""
    labels = torch.randint(0, 5, (count,))
    images = 0.4 * torch.randn(count, 1, 10, 10)
    for image, label in zip(images, labels.tolist(), strict=True):
        for row in torch.randperm(10)[: 2 * label].tolist():
            image[0, row] += 1.5
    return TensorDataset(images, labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(17)
    loader = DataLoader(bars(640), batch_size=32, shuffle=True)
    net = Digits()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    optimizer.zero_grad()
    for epoch in range(6):
        running = 0.0
        for inputs, labels in loader:
            loss = criterion(net(inputs), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"[{epoch + 1}] loss: {running / len(loader):.3f} head |g| {net.head.weight.grad.norm():.2f}")


if __name__ == "__main__":
    main()
