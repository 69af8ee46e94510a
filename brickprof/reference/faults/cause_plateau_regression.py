"""A regression is done after about a hundred updates: the loss sits at the noise of the data and does not move. The
run goes on for nine hundred more, because nobody looks and there is no early stop."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-plateau-regression",
    "row": None,
    "title": "nine hundred updates without progress",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["FALSIFY-ALBOR-001", "C-AUTOEVAL-001", "C-GENERAL-001"],
    "root_causes": ["plateau", "underfitting"],
    "bricks": [],
    "first_step": 150,
    "needs": "cpu",
}


def measurements(count, weights):
    x = torch.randn(count, 8)
    return x, x @ weights + 0.7 * torch.randn(count, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = torch.randn(8, 1)
    held_out = measurements(400, weights)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1000):
        x, y = measurements(128, weights)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                validation = nn.functional.mse_loss(model(held_out[0]), held_out[1])
            print(f"step {step} loss {loss.item():.4f} validation {validation.item():.4f}")
