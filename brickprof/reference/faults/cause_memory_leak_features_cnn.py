"""A forward hook collects feature maps for a plot that is made "later" and never clears its list. Every step leaves
its activations behind, and the process grows until something kills it."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-memory-leak-features-cnn",
    "row": None,
    "title": "a hook keeps every feature map",
    "family": "cnn",
    "kind": "performance",
    "contracts": ["C-MEMSTABLE-001"],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}


class FeatureTap:
    def __init__(self, module):
        self.maps = []
        module.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.maps.append(output.detach().clone())


def batch(size=64):
    labels = torch.randint(0, 2, (size,))
    images = torch.randn(size, 1, 24, 24)
    images[labels == 1, :, 8:16, 8:16] += 1
    return images, labels


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 2)
    )
    tap = FeatureTap(model[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(120):
        images, labels = batch()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} maps {len(tap.maps)}")


if __name__ == "__main__":
    main()
