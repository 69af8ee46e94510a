"""Sequences get longer in three stages; the loss jumps up at each change of stage and falls again."""

import torch
from torch import nn

TRUTH = {
    "id": "curriculum",
    "title": "the task gets harder in stages",
    "family": "lstm",
    "trap": "the loss jumps up twice, because the problem changes; shapes of the batches change too",
    "needs": "cpu",
}


class Adder(nn.Module):
    """Reads numbers with marks and gives the sum of the marked ones."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 32, batch_first=True)
        self.read = nn.Linear(32, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.read(out[:, -1]).squeeze(1)


def problems(count, length):
    numbers = torch.rand(count, length) * 2 - 1
    marks = torch.zeros(count, length)
    marks.scatter_(1, torch.rand(count, length).argsort(1)[:, :2], 1.0)
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(1)


torch.set_num_threads(1)
torch.manual_seed(0)
model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
step = 0
for length, steps in ((2, 120), (5, 120), (9, 120)):
    for _ in range(steps):
        x, y = problems(48, length)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 30 == 0:
            print(f"step {step} length {length} loss {loss.item():.4f}")
