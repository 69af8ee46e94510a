"""A hand-made channel norm multiplies by self.scale.data and adds self.shift.data. The network trains, and the two
parameters of every norm keep their first values."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-no-gradient-path-data-cnn",
    "row": None,
    "title": "norm parameters are used through .data",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": ["norm1", "norm2"],
    "first_step": 0,
    "needs": "cpu",
}


class ChannelNorm(nn.Module):
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=(2, 3), keepdim=True)
        variance = x.var(dim=(2, 3), keepdim=True, unbiased=False)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return x * self.scale.data[:, None, None] + self.shift.data[:, None, None]


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3), ChannelNorm(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 12, 3), ChannelNorm(12)
        self.out = nn.Linear(12 * 16, 3)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.out(x.flatten(1))


def corners(count):
    labels = torch.randint(0, 3, (count,))
    images = 0.5 * torch.randn(count, 1, 8, 8)
    spots = torch.tensor([[1, 1], [1, 6], [6, 3]])[labels]
    for image, (row, column) in zip(images, spots.tolist(), strict=True):
        image[0, row - 1 : row + 2, column - 1 : column + 2] += 1.5
    return TensorDataset(images, labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(12)
    loader = DataLoader(corners(480), batch_size=32, shuffle=True)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for epoch in range(6):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} scale moved {(model.norm1.scale - 1).abs().max().item():.4f}")


if __name__ == "__main__":
    main()
