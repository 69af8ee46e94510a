"""The network ends in a softmax and its output goes to CrossEntropyLoss, which applies another one. The loss cannot
fall below about 0.55 for three classes, and the gradients are small."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-double-softmax-cnn",
    "row": None,
    "title": "softmax before cross-entropy",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-LOSSFN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["double-softmax", "loss-input-mismatch"],
    "bricks": ["softmax"],
    "first_step": 0,
    "needs": "cpu",
}


class Shapes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 10, 3)
        self.bn = nn.BatchNorm2d(10)
        self.fc = nn.Linear(10 * 9, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = nn.functional.avg_pool2d(torch.relu(self.bn(self.conv(x))), 2)
        return self.softmax(self.fc(x.flatten(1)))


def lines(count):
    labels = torch.randint(0, 3, (count,))
    images = 0.3 * torch.randn(count, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        place = int(torch.randint(1, 7, ()))
        if label == 0:
            image[0, place] += 1
        elif label == 1:
            image[0, :, place] += 1
        else:
            image[0].fill_diagonal_(1.0)
    return TensorDataset(images, labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(lines(600), batch_size=30, shuffle=True)
    model = Shapes()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        total, right = 0.0, 0
        for x, y in train:
            optimizer.zero_grad()
            output = model(x)
            loss = criterion(output, y)
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += int((output.argmax(1) == y).sum())
        print(f"epoch {epoch}: loss {total / len(train):.4f} accuracy {right / 600:.3f}")


if __name__ == "__main__":
    main()
