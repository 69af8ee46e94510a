"""Labels are looked up by file name, and names that are not in the table get a random class "for now". After a
renaming of the files that is all of them, so there is nothing to learn and the loss stays at ln 6."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "id": "cause-labels-random-mlp",
    "row": None,
    "title": "every label is a random fallback",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-LEARN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["labels-random", "labels-misaligned"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


class Recordings(Dataset):
    def __init__(self, names, features, table):
        self.names, self.features = names, features
        self.classes = [table.get(name, int(torch.randint(0, 6, ()))) for name in names]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.features[index], self.classes[index]


def make_recordings(count=3000):
    classes = torch.randint(0, 6, (count,))
    centres = 2 * torch.randn(6, 12)
    features = centres[classes] + torch.randn(count, 12)
    table = {f"rec_{i:05d}.wav": int(c) for i, c in enumerate(classes)}
    names = [f"rec-{i:05d}.wav" for i in range(count)]
    return Recordings(names, features, table)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    loader = DataLoader(make_recordings(), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        total = 0.0
        for features, classes in loader:
            loss = nn.functional.cross_entropy(model(features), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
