"""CosineAnnealingLR gets T_max in epochs (6) and is stepped once a batch. The learning rate falls to zero and climbs
back every few updates, all through the run."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-schedule-horizon-wrong-epochs-cnn",
    "row": None,
    "title": "cosine horizon in epochs, stepped per batch",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001"],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 6,
    "needs": "cpu",
}


def dataset(count=512):
    """A cross or a ring on a noisy ground."""
    labels = torch.randint(0, 2, (count,))
    cross, ring = torch.zeros(7, 7), torch.ones(7, 7)
    cross[3], cross[:, 3] = 1, 1
    ring[1:6, 1:6] = 0
    images = torch.stack([cross, ring])[labels] + 0.8 * torch.randn(count, 7, 7)
    return TensorDataset(images.unsqueeze(1), labels)


def main(epochs=6):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    loader = DataLoader(dataset(), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
