"""Clipping by hand with the square of the norm: a gradient of norm 10 becomes 0.1 instead of 1. While the norm is
above the limit, learning is slow, and the larger the gradient the smaller the step."""

import sys

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "alb-124",
    "row": 40,
    "title": "the clip coefficient uses the squared norm",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-CLIP-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "args": ["train.yaml"],
    "files": {"train.yaml": "epochs: 4\nbatch_size: 32\nlr: 0.02\nmomentum: 0.9\nmax_grad_norm: 1.0\nseed: 0\n"},
}


class House(nn.Module):
    """Prices from ten facts about a house."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.price = nn.Linear(64, 1)

    def forward(self, x):
        return self.price(self.hidden(x)).squeeze(-1)


def clip_grads(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum(g.pow(2).sum() for g in grads)
    coef = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for g in grads:
        g.mul_(coef)


def main(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    x = torch.randn(1280, 10)
    y = 20 + 8 * x[:, 0] + 5 * x[:, 1].abs() + torch.randn(1280)
    loader = DataLoader(TensorDataset(x, y), batch_size=config["batch_size"], shuffle=True)
    model = House()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for epoch in range(config["epochs"]):
        for i, (inputs, price) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), price)
            loss.backward()
            clip_grads(model.parameters(), config["max_grad_norm"])
            optimizer.step()
            if i % 20 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.3f}")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(yaml.safe_load(file))
