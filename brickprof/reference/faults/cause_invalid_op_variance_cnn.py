"""A hand-made normalisation computes its deviation as sqrt(E[x^2] - E[x]^2). For bright, even images rounding makes
that difference slightly negative, and the root of it is nan."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-invalid-op-variance-cnn",
    "row": None,
    "title": "square root of a negative variance",
    "family": "cnn",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["invalid-op"],
    "bricks": ["standardise"],
    "first_step": 50,
    "needs": "cpu",
}


class Standardise(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        deviation = torch.sqrt((x**2).mean(dim=(1, 2, 3), keepdim=True) - mean**2)
        return (x - mean) / (deviation + 1e-3)


class Inspector(nn.Module):
    def __init__(self):
        super().__init__()
        self.standardise = Standardise()
        self.conv = nn.Conv2d(1, 8, 3)
        self.pool = nn.AdaptiveMaxPool2d(3)
        self.fc = nn.Linear(72, 2)

    def forward(self, x):
        return self.fc(self.pool(torch.relu(self.conv(self.standardise(x)))).flatten(1))


def scans(count, noise):
    """Surfaces, half of them with a scratch; `noise` is that of the camera."""
    labels = torch.randint(0, 2, (count,))
    images = 200 + noise * torch.randn(count, 1, 12, 12)
    images[labels == 1, 0, 5] -= 4
    return images, labels


def main():
    torch.set_num_threads(1)
    torch.manual_seed(4)
    model = Inspector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(120):
        images, labels = scans(16, noise=0.001 if step >= 50 else 1.0)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
