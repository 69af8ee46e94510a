"""AdamW with weight_decay=50, meant as 0.05: with a rate of 2e-3 every update takes a tenth of every weight away. The
weights shrink to a fraction and the loss stalls far above what the task allows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-weight-decay-too-strong-cnn",
    "row": None,
    "title": "weight decay of 50",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-HYPERPARAMS-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["weight-decay-too-strong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def patches(count):
    labels = torch.randint(0, 3, (count,))
    images = torch.randn(count, 1, 9, 9)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 3 * label : 3 * label + 3, 3:6] += 1.5
    return TensorDataset(images, labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(patches(800), batch_size=40, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(300, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=50)
    for epoch in range(8):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        size = sum(p.pow(2).sum() for p in model.parameters()).sqrt()
        print(f"epoch {epoch} loss {total / len(loader):.4f} |w| {size.item():.4f}")


if __name__ == "__main__":
    main()
