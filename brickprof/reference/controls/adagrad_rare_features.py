"""Adagrad on bags of words: many features are rare, so that their weights hardly move while others go far."""

import torch
from torch import nn

TRUTH = {
    "id": "adagrad-rare-features",
    "title": "logistic regression with Adagrad on rare features",
    "family": "other",
    "trap": "the steps of Adagrad shrink all the time; columns are zero in most batches; all weights begin at zero",
    "needs": "cpu",
}


class Bags:
    def __init__(self, words=120):
        self.chance = 0.5 / torch.arange(1, words + 1) ** 0.7
        self.meaning = torch.randn(words)

    def batch(self, size):
        x = (torch.rand(size, len(self.chance)) < self.chance).float()
        return x, torch.bernoulli(torch.sigmoid(2 * (x @ self.meaning)))


def main():
    torch.manual_seed(3)
    bags = Bags()
    model = nn.Linear(120, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
    criterion = nn.BCEWithLogitsLoss()
    for step in range(250):
        x, y = bags.batch(64)
        loss = criterion(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
