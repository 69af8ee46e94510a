"""Mixed pictures with mixed labels: targets are shares of classes, and the loss cannot reach zero."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "mixup-soft-targets",
    "title": "mixup with soft targets",
    "family": "cnn",
    "trap": "the training loss stays well above the loss on clean samples; targets are floating-point",
    "needs": "cpu",
}


def gratings(count):
    label = torch.randint(0, 4, (count,))
    angle = label * torch.pi / 4
    y, x = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")
    along = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y
    return torch.sin(1.3 * along + 6.28 * torch.rand(count, 1, 1)).unsqueeze(1) + 0.3 * torch.randn(
        count, 1, 10, 10
    ), label


def mixup(x, y, alpha=0.4):
    share = torch.distributions.Beta(alpha, alpha).sample()
    other = torch.randperm(len(x))
    hot = F.one_hot(y, 4).float()
    return share * x + (1 - share) * x[other], share * hot + (1 - share) * hot[other]


def main():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*gratings(640)), batch_size=32, shuffle=True)
    clean_x, clean_y = gratings(200)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5), nn.BatchNorm2d(12), nn.GELU(), nn.Conv2d(12, 12, 3), nn.GELU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for epoch in range(6):
        model.train()
        for x, y in loader:
            inputs, targets = mixup(x, y)
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            clean = F.cross_entropy(model(clean_x), clean_y).item()
        print(f"epoch {epoch} mixed {loss.item():.4f} clean {clean:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
