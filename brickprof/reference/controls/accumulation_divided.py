"""Gradients of four small batches are gathered for one update, each loss divided by four, the rest of an epoch too."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "accumulation-divided",
    "title": "four backward passes to an update, losses divided",
    "family": "cnn",
    "trap": "gradients stay from one backward pass to the next; the last group of an epoch has fewer passes",
    "needs": "cpu",
}


def textures(count):
    label = torch.randint(0, 4, (count,))
    wave = torch.arange(10.0)
    images = []
    for kind in label.tolist():
        rows, columns = torch.meshgrid(wave, wave, indexing="ij")
        along = (rows, columns, rows + columns, rows - columns)[kind]
        images.append(torch.sin(1.6 * along + 6.28 * torch.rand(())))
    return torch.stack(images).unsqueeze(1) + 0.3 * torch.randn(count, 1, 10, 10), label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3), nn.Conv2d(12, 16, 3)
        self.norm1, self.norm2 = nn.GroupNorm(3, 12), nn.GroupNorm(4, 16)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        return self.fc(F.relu(self.norm2(self.conv2(x))).mean((2, 3)))


def main(passes=4):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*textures(600)), batch_size=12, shuffle=True)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=6e-3)
    for epoch in range(5):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            first = i - i % passes
            loss = F.cross_entropy(net(x), y) / min(passes, len(loader) - first)
            loss.backward()
            if (i + 1) % passes == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch} loss {loss.item() * min(passes, len(loader) - first):.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
