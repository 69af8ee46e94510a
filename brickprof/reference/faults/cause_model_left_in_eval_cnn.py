"""The validation after each epoch calls model.eval() and nobody calls model.train() again. From the second epoch on
dropout is off and batch norm uses frozen statistics while the weights move."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-model-left-in-eval-cnn",
    "row": None,
    "title": "no model.train() after validation",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-MODE-001"],
    "root_causes": ["model-left-in-eval"],
    "bricks": [],
    "first_step": 20,
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(16 * 16, 4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(self.drop(x.flatten(1)))


def blocks(count):
    labels = torch.randint(0, 4, (count,))
    images = 3 + torch.randn(count, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.8
    return TensorDataset(images, labels)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    return right / len(loader.dataset)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, valid = DataLoader(blocks(640), batch_size=32, shuffle=True), DataLoader(blocks(200), batch_size=100)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.train()
    for epoch in range(5):
        total = 0.0
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(
            f"epoch {epoch} loss {total / len(train):.4f} valid {validate(model, valid):.3f} training={model.training}"
        )


if __name__ == "__main__":
    main()
