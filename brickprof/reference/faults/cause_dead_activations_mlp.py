"""The hidden biases are set to -8 "for sparsity". Every ReLU is below zero for every sample, so the layer gives
zeros, gets no gradient, and cannot come back."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-dead-activations-mlp",
    "row": None,
    "title": "all hidden units are dead from the start",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-ACT-001", "C-GRADFLOW-001", "C-INIT-001"],
    "root_causes": ["dead-activations", "bad-initialisation"],
    "bricks": ["hidden", "relu2", "relu", "hidden2"],
    "first_step": 0,
    "needs": "cpu",
}


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(12, 64)
        self.relu = nn.ReLU()
        self.hidden2 = nn.Linear(64, 64)
        self.relu2 = nn.ReLU()
        self.out = nn.Linear(64, 1)
        nn.init.constant_(self.hidden2.bias, -8.0)

    def forward(self, x):
        x = self.relu(self.hidden(x))
        x = self.relu2(self.hidden2(x))
        return self.out(x)


def fit(model, x, y, epochs=10, batch=32):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        total = 0.0
        for rows in order.split(batch):
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch} mse {total / len(x):.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(640, 12)
    fit(Sparse(), x, torch.sin(x[:, :1]) + x[:, 1:2].abs())
