"""A plain CNN of eight layers whose kernels are drawn with a fixed standard deviation of 0.3, whatever the fan-in.
Activations grow by a factor per layer; the first loss is in the hundreds and the gradients explode."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-bad-initialisation-deep-cnn",
    "row": None,
    "title": "fixed standard deviation in a deep CNN",
    "family": "cnn",
    "kind": "numeric",
    "contracts": ["C-INIT-001", "C-TRAINSTABLE-001"],
    "root_causes": ["bad-initialisation", "exploding-gradients"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def build(depth=8, channels=24):
    layers = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 4))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.3)
            nn.init.zeros_(module.bias)
    return model


def quadrants(count):
    labels = torch.randint(0, 4, (count,))
    images = 0.3 * torch.randn(count, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
    return images, labels


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for step in range(60):
        images, labels = quadrants(32)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4g}")
