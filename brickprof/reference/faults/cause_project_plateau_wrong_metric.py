"""A tabular project with normalisation, validation, history and a rate that should fall when progress stops.
ReduceLROnPlateau is given the accuracy and left in its mode "min": each better epoch counts as a worse one, and the
rate is cut until nothing is left."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-project-plateau-wrong-metric",
    "row": None,
    "title": "ReduceLROnPlateau minimises the accuracy",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "FALSIFY-ALBOR-001", "C-LEARN-001"],
    "root_causes": ["schedule-horizon-wrong", "learning-rate-too-low"],
    "bricks": [],
    "first_step": 54,
    "needs": "cpu",
}


class Columns:
    """Standardises columns by what the training rows show."""

    def __init__(self, rows):
        self.mean, self.std = rows.mean(0), rows.std(0)

    def __call__(self, rows):
        return (rows - self.mean) / self.std


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.inner(x)


def build(inputs, width, depth, classes):
    return nn.Sequential(nn.Linear(inputs, width), *[Residual(width) for _ in range(depth)], nn.Linear(width, classes))


def customers(count):
    age, income, visits = (
        20 + 50 * torch.rand(count),
        2e4 + 8e4 * torch.rand(count),
        torch.poisson(torch.full((count,), 6.0)),
    )
    noise = torch.randn(count, 3)
    score = torch.sin((age - 45) / 10) + (income - 6e4) / 3e4 * (visits - 6) / 3
    labels = torch.bucketize(score, torch.tensor([-0.6, 0.6]))
    return torch.cat([torch.stack([age, income, visits], 1), noise], 1), labels


def run_epoch(model, loader, optimizer):
    total = 0.0
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def main(options):
    torch.manual_seed(options.seed)
    x, y = customers(1200)
    scale = Columns(x[:900])
    x = scale(x)
    loader = DataLoader(TensorDataset(x[:900], y[:900]), batch_size=50, shuffle=True)
    model = build(x.shape[1], options.width, 2, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
    history = []
    for epoch in range(options.epochs):
        loss = run_epoch(model, loader, optimizer)
        score = accuracy(model, x[900:], y[900:])
        scheduler.step(score)
        history.append({"epoch": epoch, "loss": loss, "accuracy": score, "lr": optimizer.param_groups[0]["lr"]})
        print(" ".join(f"{key} {value:.4g}" for key, value in history[-1].items()))
    Path(options.out, "history.json").write_text(json.dumps(history))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=tempfile.gettempdir())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args(["--out", folder]))
