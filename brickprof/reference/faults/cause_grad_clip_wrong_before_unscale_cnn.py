"""Mixed precision training of a CNN, clipped before scaler.unscale_: the norm of the scaled gradient is brought to 1,
and unscaling then leaves almost nothing for SGD to apply."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-grad-clip-wrong-before-unscale-cnn",
    "row": None,
    "title": "gradients are clipped while they still carry the loss scale",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-CLIP-001", "C-LOSSSCALE-001"],
    "root_causes": ["grad-clip-wrong", "loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def stripes(count):
    """Images whose stripes run in one of four directions."""
    labels = torch.randint(0, 4, (count,))
    angle = labels * torch.pi / 4
    grid = torch.arange(12.0)
    phase = torch.rand(count, 1, 1) * 6
    wave = torch.cos(angle)[:, None, None] * grid[None, :, None] + torch.sin(angle)[:, None, None] * grid[None, None, :]
    return (torch.sin(wave + phase) + 0.2 * torch.randn(count, 12, 12)).unsqueeze(1), labels


def build():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 4)
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(*stripes(1024)), batch_size=32, shuffle=True)
    model = build()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    for epoch in range(5):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = criterion(model(images), labels)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
