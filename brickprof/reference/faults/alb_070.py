"""The configuration says ``eval_interval: 50``; the script was renamed to ``eval_every`` and reads the old key no
more. The default of 1 rules: the whole validation set is run after every step."""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "alb-070",
    "row": 18,
    "title": "a renamed key falls back to its default: evaluation after every step",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-CONFIG-001", "C-HYPERPARAMS-001", "C-TRAINCFG-001"],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "config.json"],
    "args": ["config.json"],
    "files": {
        "config.json": '{"epochs": 4, "batch_size": 32, "lr": 0.002, "weight_decay": 0.01, '
        '"eval_interval": 50, "seed": 3}\n'
    },
}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
        )

    def forward(self, x):
        return self.layers(x)


def load(seed):
    torch.manual_seed(seed)
    x = torch.randn(1600, 20)
    y = (x @ torch.randn(20, 5)).argmax(1)
    return TensorDataset(x[:1280], y[:1280]), TensorDataset(x[1280:], y[1280:])


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    losses = [F.cross_entropy(model(x), y).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def main(path):
    torch.set_num_threads(1)
    with open(path) as file:
        config = json.load(file)
    eval_every = config.get("eval_every", 1)
    training, validation = load(config.get("seed", 0))
    train_loader = DataLoader(training, config["batch_size"], shuffle=True)
    valid_loader = DataLoader(validation, 64)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    step = 0
    for _ in range(config["epochs"]):
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % eval_every == 0:
                value = evaluate(model, valid_loader)
                if step % 20 == 0:
                    print(f"step {step}: train {loss.item():.4f} validation {value:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
