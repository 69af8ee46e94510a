"""A CNN with batch norm is trained by Adam at lr 1e-7, a typing error for 1e-3. Everything works and nothing is
learnt."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-learning-rate-too-low-cnn",
    "row": None,
    "title": "Adam with lr=1e-7",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-TRAINCFG-001", "C-LEARN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["learning-rate-too-low"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

LEARNING_RATE = 1e-7


def make_images(count, generator):
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
    for i, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        images[i, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1.0
    return images, labels


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 16, 4)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn(self.conv(x))), 2)
        return self.fc(x.flatten(1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(9)
    train = DataLoader(TensorDataset(*make_images(800, generator)), batch_size=40, shuffle=True)
    model = SmallNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(10):
        running = 0.0
        for images, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}: {running / len(train):.4f}")


if __name__ == "__main__":
    main()
