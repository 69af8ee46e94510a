"""The dataset is sorted by class and the loader does not shuffle. Each stretch of batches holds one class only; the
network forgets the others, and the loss jumps at every border."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-data-not-shuffled-cnn",
    "row": None,
    "title": "sorted classes, no shuffling",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-DATA-001"],
    "root_causes": ["data-not-shuffled"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def sorted_images(per_class=120, classes=5):
    labels = torch.arange(classes).repeat_interleave(per_class)
    images = 0.5 * torch.randn(len(labels), 1, 10, 10)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, :, 2 * label : 2 * label + 2] += 1.0
    return TensorDataset(images, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.fc = nn.Linear(8 * 36, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(sorted_images(), batch_size=20)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(6):
        losses = []
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: " + " ".join(f"{loss:.2f}" for loss in losses[::3]))


if __name__ == "__main__":
    main()
