"""Gradients of micro-batches are summed in buffers of their own, which come from a pool that has been used before.
They are cleared after every update but not before the first one, so the first update is garbage."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-092b",
    "row": 28,
    "title": "gradient accumulators are not cleared before the first step",
    "family": "cnn",
    "kind": "numeric",
    "contracts": ["C-GPUINIT-001", "C-GA-001"],
    "root_causes": ["optimizer-state-uninitialised"],
    "bricks": [],
    "first_step": 3,  # the first update comes after four backward passes
    "needs": "cpu",
    "gpu": True,
}


class Pool:
    """Memory that is handed out again and again."""

    def __init__(self, size):
        self.memory = torch.zeros(size)
        self.at = 0

    def take(self, shape):
        size = shape.numel()
        start, self.at = self.at, self.at + size
        return self.memory[start : self.at].view(shape)

    def reset(self):
        self.at = 0


class Accumulator:
    def __init__(self, parameters, pool):
        self.parameters = list(parameters)
        self.sums = [pool.take(p.shape) for p in self.parameters]

    def add(self):
        for p, total in zip(self.parameters, self.sums, strict=True):
            total += p.grad
            p.grad = None

    def apply(self, optimizer):
        for p, total in zip(self.parameters, self.sums, strict=True):
            p.grad = total.clone()
        optimizer.step()
        optimizer.zero_grad()
        for total in self.sums:
            total.zero_()


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def main(micro_batches=4, steps=60):
    torch.set_num_threads(1)
    torch.manual_seed(6)
    pool = Pool(60_000)
    images = torch.randn(5, 1, 10, 10)
    pool.take(torch.Size((5, 10, 10))).copy_(images[:, 0])  # the pool stages the pictures first
    pool.take(torch.Size((40, 100))).copy_(torch.cat([images[:, 0].flatten(1)] * 8) * 3)
    pool.reset()

    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    accumulator = Accumulator(net.parameters(), pool)
    for step in range(steps):
        total = 0.0
        for _ in range(micro_batches):
            label = torch.randint(5, (8,))
            x = images[label] + 0.5 * torch.randn(8, 1, 10, 10)
            loss = F.cross_entropy(net(x), label) / micro_batches
            loss.backward()
            accumulator.add()
            total += loss.item()
        accumulator.apply(optimizer)
        if step < 5 or step % 10 == 0:
            print(f"step {step} loss {total:.4f}")


if __name__ == "__main__":
    main()
