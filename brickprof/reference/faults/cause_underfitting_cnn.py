"""Rings and crosses are to be told apart by a network with a single 1x1 convolution and a mean: it cannot see any
shape. Training and validation loss are equally bad from the first epoch to the last."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-underfitting-cnn",
    "row": None,
    "title": "a model too small for its task",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["FALSIFY-ALBOR-001", "C-GENERAL-001", "C-LEARN-001"],
    "root_causes": ["underfitting", "plateau"],
    "bricks": [],
    "first_step": None,
    "needs": "cpu",
}


def shapes(count):
    labels = torch.randint(0, 3, (count,))
    plans = torch.zeros(3, 7, 7)
    plans[0, 1, 1:6] = plans[0, 5, 1:6] = plans[0, 1:6, 1] = plans[0, 1:6, 5] = 1
    plans[1, 3] = plans[1, :, 3] = 1
    plans[2].fill_diagonal_(1)
    plans[2] += plans[2].flip(1)
    images = plans[labels] * (1 + 0.2 * torch.randn(count, 1, 1)) + 0.5 * torch.randn(count, 7, 7)
    return TensorDataset(images.unsqueeze(1), labels)


def build_model():
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))


def epoch_loss(model, loader, optimizer=None):
    total = 0.0
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
    return total / len(loader)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(shapes(960), batch_size=32, shuffle=True)
    valid = DataLoader(shapes(320), batch_size=32)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(10):
        print(f"epoch {epoch} train {epoch_loss(model, train, optimizer):.4f} valid {epoch_loss(model, valid):.4f}")
