"""Each sample goes to one of six experts. In a small batch some experts get no sample, and so no gradient."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "mixture-of-experts",
    "title": "experts that get no sample in some steps",
    "family": "other",
    "trap": "an expert without a sample has no gradient in that step; a balancing loss stays near its minimum of 1",
    "needs": "cpu",
}


class Experts(nn.Module):
    def __init__(self, inputs=8, width=24, count=6):
        super().__init__()
        self.route = nn.Linear(inputs, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(count)
        )

    def forward(self, x):
        shares = self.route(x).softmax(1)
        weight, chosen = shares.max(1)
        out = torch.zeros(len(x))
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, weight[rows] * expert(x[rows]).squeeze(1))
        used = F.one_hot(chosen, len(self.experts)).float().mean(0)
        return out, len(self.experts) * (used * shares.mean(0)).sum()


def pieces(count):
    """A function that differs from region to region."""
    x = torch.randn(count, 8)
    return x, torch.where(x[:, 0] > 0, x[:, 1] + x[:, 2], torch.where(x[:, 3] > 0, x[:, 1] * 2, -x[:, 2]))


def main():
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(220):
        x, y = pieces(24)
        said, balance = model(x)
        loss = F.mse_loss(said, y) + 0.05 * balance
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} balance {balance.item():.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
