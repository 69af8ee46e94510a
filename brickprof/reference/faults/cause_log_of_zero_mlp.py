"""Binary cross-entropy written by hand as y log p + (1 - y) log(1 - p). Training goes well until one prediction
saturates to exactly 1 in fp32; then 0 times log 0 is nan."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-log-of-zero-mlp",
    "row": None,
    "title": "hand-made BCE takes the log of zero",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-TRAINSTABLE-001"],
    "root_causes": ["log-of-zero"],
    "bricks": [],
    "first_step": 30,
    "needs": "cpu",
}


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return torch.sigmoid(self.net(x)).squeeze(-1)


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Scorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(200):
        x = 2 * torch.randn(128, 4)
        y = (x[:, 0] + x[:, 1] > 0).float()
        loss = bce(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
