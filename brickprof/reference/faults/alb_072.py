"""The loss is multiplied by 65536, as half precision wants it, in a training that is all float32, and nobody divides
the gradients again. Every update is 65536 times too large."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-072",
    "row": 20,
    "title": "a loss scale of 65536 in float32 that is never taken back",
    "family": "cnn",
    "kind": "numeric",
    "contracts": ["C-LOSSSCALE-001", "C-TRAINSTABLE-001"],
    "root_causes": ["loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

LOSS_SCALE = 2.0**16


class ResNetish(nn.Module):
    def __init__(self, width=16, classes=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.block1 = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = x + self.block1(x)
        x = x + self.block2(x)
        return self.fc(x.mean(dim=(2, 3)))


def colours(count):
    label = torch.randint(6, (count,))
    tint = torch.eye(3)[label % 3] * torch.where(label < 3, 1.0, -1.0)[:, None]
    return 0.5 * torch.randn(count, 3, 10, 10) + tint[:, :, None, None], label


def main():
    torch.set_num_threads(1)
    torch.manual_seed(12)
    net = ResNetish()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(3):
        for i in range(25):
            x, y = colours(24)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad(set_to_none=True)
            (loss * LOSS_SCALE).backward()
            optimizer.step()
            if i % 5 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
