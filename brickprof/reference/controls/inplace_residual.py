"""Residual blocks with activations that overwrite their input."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "inplace-residual",
    "title": "in-place activations and additions",
    "family": "cnn",
    "trap": "outputs of a module are overwritten by the next one, so that what was seen is no longer there",
    "needs": "cpu",
}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width=10, depth=2, classes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).amax((2, 3)))


def spots(count):
    """A square of one of three sizes."""
    label = torch.randint(0, 3, (count,))
    images = 0.2 * torch.randn(count, 1, 10, 10)
    for image, kind in zip(images, label.tolist(), strict=True):
        place, side = torch.randint(0, 6, (2,)), kind + 2
        image[0, place[0] : place[0] + side, place[1] : place[1] + side] += 1
    return images, label


torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(*spots(600)), batch_size=40, shuffle=True, num_workers=0)
net = ResNet()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
for epoch in range(5):
    running = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(f"[{epoch + 1}] loss {running / len(loader):.3f}")
