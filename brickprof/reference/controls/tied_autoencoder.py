"""The decoder uses the encoder's own weights, transposed: one tensor with two uses and a sum of two gradients."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "tied-autoencoder",
    "title": "decoder with the transposed weights of the encoder",
    "family": "other",
    "trap": "a weight that is used twice in a forward pass; there is no decoder module",
    "needs": "cpu",
}


class Tied(nn.Module):
    def __init__(self, inputs=24, code=6):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(code, inputs))
        nn.init.xavier_uniform_(self.weight)
        self.inner, self.outer = nn.Parameter(torch.zeros(code)), nn.Parameter(torch.zeros(inputs))

    def forward(self, x):
        code = torch.tanh(F.linear(x, self.weight, self.inner))
        return F.linear(code, self.weight.t(), self.outer)


class Source:
    def __init__(self):
        self.basis = torch.randn(4, 24) / 2

    def __call__(self, count):
        return torch.randn(count, 4) @ self.basis + 0.05 * torch.randn(count, 24)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source, model = Source(), Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    step = 0
    while step < 300:
        x = source(40)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 60 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
        step += 1


if __name__ == "__main__":
    main()
