"""Only a head is trained, on the features of a backbone that is left as it is and stays in evaluation mode."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "frozen-backbone-head",
    "title": "linear probe on a frozen backbone in eval mode",
    "family": "cnn",
    "trap": "most parameters never move and most modules are in evaluation mode during training, as intended",
    "needs": "cpu",
}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x))).flatten(1)


class Probe(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(16 * 16, 4)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def quarters(count):
    """In which quarter of the picture the bright spot lies."""
    label = torch.randint(0, 4, (count,))
    images = 0.3 * torch.randn(count, 1, 8, 8)
    for i, where in enumerate(label.tolist()):
        row, column = 4 * (where // 2) + int(torch.randint(0, 3, ())), 4 * (where % 2) + int(torch.randint(0, 3, ()))
        images[i, 0, row : row + 2, column : column + 2] += 1.5
    return images, label


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone = Backbone()
    for parameter in backbone.parameters():
        parameter.requires_grad = False
    model = Probe(backbone).train()
    loader = DataLoader(TensorDataset(*quarters(512)), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    for epoch in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
