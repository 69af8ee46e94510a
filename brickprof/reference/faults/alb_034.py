"""The configuration limits the run to 60 steps, the loop knows epochs only. It makes 200 updates, and the schedule,
which does know the limit, has long reached zero."""

import argparse

import torch
import torch.nn.functional as F
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "alb-034",
    "row": 56,
    "title": "max_steps is not wired into the loop",
    "family": "cnn",
    "kind": "silent",
    "contracts": ["C-TRAINCFG-001", "C-CONFIG-001", "C-COSINE-001"],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 60,
    "needs": "cpu",
    "run": ["--config", "config.yaml"],
    "args": ["config.yaml"],
    "files": {
        "config.yaml": "trainer:\n  max_epochs: 5\n  max_steps: 60\ndata:\n  batch_size: 32\noptim:\n  name: adam\n"
        "  lr: 0.002\nseed: 7\n"
    },
}


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.head = nn.Linear(16 * 9, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def crosses(count):
    label = torch.arange(count) % 4
    image = 0.5 * torch.randn(count, 1, 10, 10)
    for i, kind in enumerate(label.tolist()):
        if kind & 1:
            image[i, 0, 5] += 1.0
        if kind & 2:
            image[i, 0, :, 5] += 1.0
    return TensorDataset(image, label)


def fit(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    loader = DataLoader(crosses(1280), batch_size=config["data"]["batch_size"], shuffle=True)
    model = Cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["optim"]["lr"])
    limit = config["trainer"]["max_steps"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / limit))
    for epoch in range(config["trainer"]["max_epochs"]):
        total = 0.0
        for image, label in loader:
            loss = F.cross_entropy(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} lr {schedule.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    with open(parser.parse_args().config) as file:
        fit(yaml.safe_load(file))
