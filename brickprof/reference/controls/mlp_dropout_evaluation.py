"""A small classifier with dropout, trained in epochs over a shuffled loader and evaluated after each of them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "mlp-dropout-evaluation",
    "title": "dropout, evaluation after each epoch",
    "family": "mlp",
    "trap": "the evaluation loss lies below the training loss, because dropout is off in it",
    "needs": "cpu",
}


def blobs(count, generator):
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7], [0.0, 0.0]])
    labels = torch.randint(0, 4, (count,), generator=generator)
    return centres[labels] + 0.6 * torch.randn(count, 2, generator=generator), labels


class Classifier(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, 4)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        x = self.drop(F.relu(self.enter(x)))
        x = self.drop(F.relu(self.middle(x)))
        return self.leave(x)


def evaluate(model, loader):
    model.eval()
    total, right, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(x)
            total += F.cross_entropy(logits, y, reduction="sum").item()
            right += (logits.argmax(1) == y).sum().item()
            count += len(y)
    model.train()
    return total / count, right / count


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(1)
    train = DataLoader(TensorDataset(*blobs(1200, source)), batch_size=32, shuffle=True)
    held_out = DataLoader(TensorDataset(*blobs(400, source)), batch_size=100)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for epoch in range(8):
        for x, y in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        held, accuracy = evaluate(model, held_out)
        print(f"epoch {epoch}  loss {loss.item():.4f}  held out {held:.4f}  accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
