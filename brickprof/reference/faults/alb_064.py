"""A convolutional classifier whose feature hook calls into a driver that aborts. No exception, no traceback:
the process is gone with SIGABRT at step 25."""

import os

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-064",
    "row": 12,
    "title": "the driver aborts the process inside a hook",
    "family": "cnn",
    "kind": "process",
    "contracts": ["C-PROCESS-001"],
    "root_causes": ["crashed-by-signal"],
    "bricks": ["features", "features.3", ""],
    "first_step": 25,
    "needs": "cpu",
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Linear(16, 4)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def stripes(count):
    label = torch.randint(4, (count,))
    grid = torch.arange(12.0)
    horizontal = torch.sin(grid * 2.0)[None, :, None].expand(count, 12, 12)
    vertical = torch.sin(grid * 2.0)[None, None, :].expand(count, 12, 12)
    image = (label % 2)[:, None, None] * horizontal + (label // 2)[:, None, None] * vertical
    return (image + 0.3 * torch.randn(count, 12, 12))[:, None], label


class Watchdog:
    """Counts the calls of a layer, as the vendor's example does."""

    def __init__(self, limit):
        self.calls, self.limit = 0, limit

    def __call__(self, module, inputs, output):
        if self.calls == self.limit:
            os.abort()
        self.calls += 1


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    net.features[3].register_forward_hook(Watchdog(25))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(100):
        image, label = stripes(32)
        loss = F.cross_entropy(net(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print("status: running, step", step, "loss", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    main()
