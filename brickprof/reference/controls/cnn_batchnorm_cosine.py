"""A convolutional network with batch normalisation learns to tell shapes in noisy pictures: SGD with momentum, weight
decay and a cosine schedule stepped once an epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cnn-batchnorm-cosine",
    "title": "batch norm, momentum, cosine by epoch",
    "family": "cnn",
    "trap": "the learning rate ends near zero and changes only once an epoch; running statistics have no gradient",
    "needs": "cpu",
}


def pictures(count):
    """Horizontal bars, vertical bars and squares, somewhere in a noisy picture."""
    kind = torch.randint(0, 3, (count,))
    images = 0.4 * torch.randn(count, 1, 12, 12)
    rows, columns = torch.randint(0, 7, (count,)), torch.randint(0, 7, (count,))
    for i in range(count):
        height, width = ((1, 5), (5, 1), (4, 4))[kind[i]]
        images[i, 0, rows[i] : rows[i] + height, columns[i] : columns[i] + width] += 1.5
    return images, kind


def block(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = block(1, 8)
        self.body = nn.Sequential(block(8, 16, stride=2), block(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


def accuracy(net, loader):
    net.eval()
    with torch.no_grad():
        right = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
    net.train()
    return right / len(loader.dataset)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(3)
    train = DataLoader(TensorDataset(*pictures(800)), batch_size=40, shuffle=True, drop_last=True)
    test = DataLoader(TensorDataset(*pictures(200)), batch_size=100)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    epochs = 6
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in train:
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        scheduler.step()
        lr = scheduler.get_last_lr()[0]
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy(net, test):.3f} lr {lr:.4f}")
