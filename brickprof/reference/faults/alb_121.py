"""A classifier on data that lie sorted by class, read in that order. It learns the class at hand, forgets the others,
and the loss is a saw."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "alb-121",
    "row": 37,
    "title": "sorted data without shuffling",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-DATA-001", "C-DATARESUME-001"],
    "root_causes": ["data-not-shuffled"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}

CLASSES = 8


class Flowers(Dataset):
    """Measurements of flowers, one kind after the other as they were collected."""

    def __init__(self, per_class=120):
        generator = torch.Generator().manual_seed(0)
        centres = 0.6 * torch.randn(CLASSES, 16, generator=generator)
        self.labels = torch.arange(CLASSES).repeat_interleave(per_class)
        self.values = centres[self.labels] + torch.randn(len(self.labels), 16, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.values[i], self.labels[i]


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        right = (model(data.values).argmax(1) == data.labels).float().mean().item()
    model.train()
    return right


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Flowers()
    loader = DataLoader(data, batch_size=24)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(5):
        losses = []
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(round(loss.item(), 3))
        print(f"epoch {epoch}: {losses[0]} ... {max(losses)} ... {losses[-1]}, accuracy {accuracy(model, data):.3f}")


if __name__ == "__main__":
    main()
