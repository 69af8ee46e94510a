"""A model that stands at its optimum already is trained on: the loss is flat at the noise's level."""

import torch
from torch import nn

TRUTH = {
    "id": "already-trained",
    "title": "training goes on at the optimum, loss flat",
    "family": "mlp",
    "trap": "the loss does not fall at all, because there is nothing left to learn",
    "needs": "cpu",
}


def main():
    torch.manual_seed(0)
    truth = torch.randn(6, 1)
    model = nn.Linear(6, 1)
    with torch.no_grad():  # what an earlier run had found
        model.weight.copy_(truth.T)
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(200):
        x = torch.randn(64, 6)
        y = x @ truth + 0.5 * torch.randn(64, 1)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
