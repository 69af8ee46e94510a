"""The batch doubles each epoch "to use the machine better", and each epoch the activations need twice the memory.
Under the limit of its container the process runs out of it and dies with an allocation error."""

import resource

import torch
from torch import nn

TRUTH = {
    "id": "cause-out-of-memory-cnn",
    "row": None,
    "title": "growing batches exhaust memory",
    "family": "cnn",
    "kind": "process",
    "contracts": ["C-PROCESS-001", "C-MEMSTABLE-001"],
    "root_causes": ["out-of-memory"],
    "bricks": [],
    "first_step": None,
    "needs": "cpu",
}


def limit_memory(extra):
    """What the container would do: this much on top of what is in use now."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.getrlimit(resource.RLIMIT_AS)[1]))


def batch(size):
    labels = torch.randint(0, 2, (size,))
    images = torch.randn(size, 1, 16, 16)
    images[labels == 1, :, 4:12, 4:12] += 1
    return images, labels


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(144, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = batch(8)
    nn.functional.cross_entropy(model(images), labels).backward()
    limit_memory(250 * 2**20)
    size = 64
    for epoch in range(12):
        for _ in range(2):
            images, labels = batch(size)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} batch {size} loss {loss.item():.4f}", flush=True)
        size *= 2


if __name__ == "__main__":
    main()
