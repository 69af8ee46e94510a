"""An optimizer of one's own, by sign of the momentum, as a subclass of torch's."""

import torch
from torch import nn

TRUTH = {
    "id": "own-optimizer",
    "title": "a sign-momentum optimizer written by the user",
    "family": "lstm",
    "trap": "an optimizer class that nobody knows; every element moves by the same amount in each step",
    "needs": "cpu",
}


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(state["average"].mul(b1).add(p.grad, alpha=1 - b1).sign(), alpha=-group["lr"])
                state["average"].mul_(b2).add_(p.grad, alpha=1 - b2)


class Parity(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[1][0]).squeeze(1)


def majority(count, length=9):
    bits = torch.randint(0, 2, (count, length)).float()
    return (bits * 2 - 1).unsqueeze(2), (bits.sum(1) > length / 2).float()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Parity()
    optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(200):
        x, y = majority(48)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")
