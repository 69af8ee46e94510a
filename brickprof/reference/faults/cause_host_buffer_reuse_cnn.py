"""Batches are copied to the GPU asynchronously from one pinned buffer, which the host fills again at once for the
next batch. The copy in flight picks up rows of the following batch, and labels and images no longer belong
together."""

import sys

import torch
from torch import nn

TRUTH = {
    "id": "cause-host-buffer-reuse-cnn",
    "row": None,
    "title": "a pinned buffer is refilled while it is copied",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-STREAMSYNC-001", "C-DETERM-001"],
    "root_causes": ["host-buffer-reuse", "stream-race"],
    "bricks": [],
    "first_step": 1,
    "needs": "gpu",
    "run": ["--sync-check"],
}


class Feeder:
    def __init__(self, size=2048, side=32):
        self.pinned = torch.empty(size, 1, side, side).pin_memory()
        self.labels = torch.arange(size) % 4

    def load(self):
        labels = self.labels[torch.randperm(len(self.labels))]
        self.pinned.normal_(std=0.3)
        for label in range(4):
            self.pinned[labels == label, :, 8 * label : 8 * label + 8] += 1
        return self.pinned.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


def main():
    if not torch.cuda.is_available():
        print("this script needs a GPU")
        sys.exit(0)

    torch.manual_seed(0)
    feeder = Feeder()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(784, 4),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = [feeder.load()]
    for step in range(100):
        batches.append(feeder.load())
        images, labels = batches.pop(0)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
