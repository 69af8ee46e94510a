"""Rows with a missing value are dropped from the features, and the labels are only cut to the same length. From the
first dropped row on, every sample carries the label of another one."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-labels-misaligned-filter-mlp",
    "row": None,
    "title": "labels are not filtered with their rows",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-LEARN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["labels-misaligned", "labels-random"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def read_table(count=3000):
    features = torch.randn(count, 6)
    labels = (features @ torch.randn(6, 5)).argmax(1)
    missing = torch.rand(count) < 0.02
    missing[2] = True
    features[missing, 0] = float("nan")
    return features, labels


def clean(features, labels):
    complete = ~features.isnan().any(dim=1)
    features = features[complete]
    return features, labels[: len(features)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(6, 24)
        self.norm = nn.LayerNorm(24)
        self.output = nn.Linear(24, 5)

    def forward(self, x):
        return self.output(torch.relu(self.norm(self.input(x))))


def main(steps=250):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    features, labels = clean(*read_table())
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for step in range(steps):
        rows = torch.randint(0, len(features), (64,))
        loss = nn.functional.cross_entropy(model(features[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
