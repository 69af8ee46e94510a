"""A regression MLP trained by SGD with a learning rate of 2, a slip for 0.02: every update overshoots, the loss
climbs far above its start."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-learning-rate-too-high-mlp",
    "row": None,
    "title": "SGD with lr=2",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-STEPSIZE-001", "C-TRAINSTABLE-001", "FALSIFY-ALBOR-001", "C-LOSSSPIKE-001"],
    "root_causes": ["learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for epoch in range(10):
        order = torch.randperm(len(x))
        for start in range(0, len(x), 50):
            rows = order[start : start + 50]
            optimizer.zero_grad()
            loss = criterion(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            if epoch == 0:
                print(f"  batch {start // 50} loss {loss.item():.4g}")
        print(f"epoch {epoch} loss {loss.item():.4g}")


if __name__ == "__main__":
    main()
