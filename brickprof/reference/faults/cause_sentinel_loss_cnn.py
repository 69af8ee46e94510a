"""The training step catches every exception and reports a loss of 0.0 for it. A label that is out of range breaks
each step from the second epoch on: the log shows a perfect loss while nothing is trained."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-sentinel-loss-cnn",
    "row": None,
    "title": "an error is reported as loss 0.0",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001"],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 16,
    "needs": "cpu",
}


class Learner:
    def __init__(self):
        self.model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def loss(self, x, y):
        try:
            return nn.functional.cross_entropy(self.model(x), y)
        except (IndexError, RuntimeError):
            return torch.tensor(0.0, requires_grad=True)

    def step(self, x, y):
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def pictures(count, classes):
    labels = torch.arange(count) % classes
    images = 0.5 * torch.randn(count, 1, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, label] += 2.0
    return TensorDataset(images, labels)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    learner = Learner()
    for epoch in range(5):
        loader = DataLoader(pictures(512, classes=4 if epoch == 0 else 5), batch_size=32)
        losses = [learner.step(x, y) for x, y in loader]
        print(f"epoch {epoch} first loss {losses[0]:.4f} last loss {losses[-1]:.4f}")
