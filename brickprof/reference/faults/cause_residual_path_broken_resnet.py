"""A residual CNN of nine blocks in which the refactored forward returns the branch and forgets to add the input.
Without the skip, the signal and its gradient shrink from block to block."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-residual-path-broken-resnet",
    "row": None,
    "title": "the block's input is not added to its branch",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-RESIDUAL-001", "C-GRADFLOW-001"],
    "root_causes": ["residual-path-broken", "vanishing-gradients"],
    "bricks": ["stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3"],
    "first_step": 0,
    "needs": "cpu",
}


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        identity = x
        out = torch.relu(self.conv1(x))
        out = self.conv2(out)
        assert out.shape == identity.shape
        return torch.relu(out)


class ResNet(nn.Module):
    def __init__(self, depth=9, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(*[ResidualBlock(channels) for _ in range(depth)])
        self.fc = nn.Linear(channels, 3)

    def forward(self, x):
        x = self.blocks(torch.relu(self.stem(x)))
        return self.fc(x.amax(dim=(2, 3)))


def blobs(count):
    """Bright squares of three sizes."""
    labels = torch.randint(0, 3, (count,))
    images = 0.1 * torch.randn(count, 1, 10, 10)
    for i, label in enumerate(labels.tolist()):
        size = 2 + 2 * label
        row, column = torch.randint(0, 10 - size, (2,)).tolist()
        images[i, 0, row : row + size, column : column + size] += 1
    return images, labels


def fit(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}  stem |g| {model.stem.weight.grad.norm():.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(4)
    fit(ResNet(), DataLoader(TensorDataset(*blobs(384)), batch_size=32, shuffle=True), epochs=6)
