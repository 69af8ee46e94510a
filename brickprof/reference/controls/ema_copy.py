"""A running average of the weights is kept in a second model and used for evaluation only."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "ema-copy",
    "title": "evaluation on an average of the weights",
    "family": "cnn",
    "trap": "a second model that has no gradient and no optimizer and yet moves",
    "needs": "cpu",
}


def crosses(count):
    images = 0.5 * torch.randn(count, 1, 9, 9)
    label = torch.randint(0, 2, (count,))
    for image, kind in zip(images, label.tolist(), strict=True):
        r, c = int(torch.randint(2, 7, ())), int(torch.randint(2, 7, ()))
        for k in (-2, -1, 0, 1, 2):
            image[0, r + (k if kind else 0), c + k] += 1.5
            image[0, r + (-k if kind else k), c + (k if kind else 0)] += 1.5
    return images, label


class Average:
    def __init__(self, model, decay=0.95):
        self.model, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def accuracy(self, x, y):
        return (self.model(x).argmax(1) == y).float().mean().item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, (test_x, test_y) = TensorDataset(*crosses(600)), crosses(200)
    loader = DataLoader(train, batch_size=30, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 2)
    )
    average = Average(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(6):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            average.update(model)
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy of the average {average.accuracy(test_x, test_y):.3f}")


if __name__ == "__main__":
    main()
