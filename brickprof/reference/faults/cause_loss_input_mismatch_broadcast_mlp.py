"""Predictions have shape (N, 1) and targets (N,): mse_loss broadcasts them to N by N with a warning that scrolls by.
Each prediction is pulled towards every target, and the model learns the mean."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-loss-input-mismatch-broadcast-mlp",
    "row": None,
    "title": "mse_loss broadcasts (N, 1) against (N,)",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-LOSSFN-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["loss-input-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(800, 5)
    y = 2 * x[:, 0] - x[:, 1] + 0.5 * x[:, 2] ** 2
    model = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_function = nn.MSELoss()
    for epoch in range(12):
        for rows in torch.randperm(800).split(40):
            prediction = model(x[rows])
            loss = loss_function(prediction, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
