"""The model is built anew inside the training function, after the optimizer was made for the first one. The optimizer
updates a model that nobody uses; the loss never moves."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-optimizer-stale-parameters-recreated-mlp",
    "row": None,
    "title": "the optimizer belongs to an earlier model",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001", "C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-stale-parameters", "optimizer-missing-parameters"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def build_model():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def build_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=2e-3)


def train(optimizer, x, y, steps=200):
    model = build_model()
    model.train()
    for step in range(steps):
        rows = torch.randint(0, len(x), (32,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.4f}")
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(3)
    x = torch.randn(1000, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    model = build_model()
    optimizer = build_optimizer(model)
    train(optimizer, x, y)
