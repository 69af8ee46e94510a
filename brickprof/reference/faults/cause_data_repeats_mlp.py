"""Every step takes next(iter(loader)) from a loader that does not shuffle: a new iterator each time, and so the same
first batch each time. The model learns those 32 rows by heart and sees no others."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-data-repeats-mlp",
    "row": None,
    "title": "next(iter(loader)) gives the first batch for ever",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-DATA-001"],
    "root_causes": ["data-repeats"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(2000, 10)
    y = (x[:, :2].prod(1) + x[:, 2] > 0).long()
    loader = DataLoader(TensorDataset(x[:1600], y[:1600]), batch_size=32)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(300):
        inputs, labels = next(iter(loader))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                held_out = nn.functional.cross_entropy(model(x[1600:]), y[1600:])
            print(f"step {step} loss {loss.item():.4f} held-out {held_out.item():.4f}")


if __name__ == "__main__":
    main()
