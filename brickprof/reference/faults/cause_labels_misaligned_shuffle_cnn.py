"""The images are shuffled once at the start and their labels are not. Gradients flow, the optimizer works, and the
loss stays at ln 4 because no image has its own label any more."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-labels-misaligned-shuffle-cnn",
    "row": None,
    "title": "images shuffled without their labels",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-LEARN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["labels-misaligned", "labels-random"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def load(count):
    labels = torch.arange(count) % 4
    images = 0.4 * torch.randn(count, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 2 * label : 2 * label + 2] += 1.0
    return images, labels


def prepare(images, labels):
    order = torch.randperm(len(images))
    images = images[order]
    return DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True, drop_last=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(6 * 9, 4)

    def forward(self, x):
        return self.fc(self.drop(self.conv(x).flatten(1)))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = prepare(*load(2048))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        losses = []
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} mean loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
