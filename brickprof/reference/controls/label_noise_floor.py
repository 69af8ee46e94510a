"""Four labels in ten are wrong by nature, so the loss cannot fall below a high floor, which it reaches and keeps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "label-noise-floor",
    "title": "a high floor from noisy labels",
    "family": "mlp",
    "trap": "the loss stays high, not far below chance, although all that can be learnt is learnt",
    "needs": "cpu",
}


def noisy(count, classes=5, wrong=0.4):
    x = torch.randn(count, 10)
    truth = x[:, :classes].argmax(1)
    other = torch.randint(0, classes, (count,))
    return x, torch.where(torch.rand(count) < wrong, other, truth)


def run_epoch(model, loader, optimizer=None):
    total = 0.0
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            total += loss.item() * len(y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return total / len(loader.dataset)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(*noisy(4000)), batch_size=100, shuffle=True)
    test = DataLoader(TensorDataset(*noisy(1000)), batch_size=250)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(6):
        learned = run_epoch(model, train, optimizer)
        print(f"epoch {epoch} train {learned:.4f} test {run_epoch(model, test):.4f}")
