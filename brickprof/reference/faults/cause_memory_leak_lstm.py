"""The history keeps `loss`, not `loss.item()`: with it stays the graph of every step and all of its activations.
Memory grows by a few megabytes with each step."""

import torch
from torch import nn

TRUTH = {
    "id": "cause-memory-leak-lstm",
    "row": None,
    "title": "the history keeps the graphs",
    "family": "lstm",
    "kind": "performance",
    "contracts": ["C-MEMSTABLE-001"],
    "root_causes": ["memory-leak"],
    "bricks": [],
    "first_step": 1,
    "needs": "cpu",
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 96, batch_first=True)
        self.out = nn.Linear(96, 32)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    history = []
    mixing = torch.randn(32, 32) / 6
    for step in range(100):
        x = torch.randn(64, 24, 32)
        y = torch.tanh(x.roll(1, dims=1) @ mixing)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)
        if step % 10 == 0:
            recent = sum(history[-10:]) / len(history[-10:])
            print(f"step {step} mean loss {recent.item():.4f}")


if __name__ == "__main__":
    main()
