"""A ReLU RNN sums long sequences. The configuration asks for a clip at norm 1, and nobody ever calls it."""

import torch
import yaml
from torch import nn

TRUTH = {
    "id": "cause-grad-clip-not-applied-rnn",
    "row": None,
    "title": "max_grad_norm is read and never used",
    "family": "lstm",
    "kind": "numeric",
    "contracts": ["C-CLIP-001", "C-TRAINSTABLE-001"],
    "root_causes": ["grad-clip-not-applied"],
    "bricks": ["rnn"],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "files": {"train.yaml": "lr: 0.02\nsteps: 200\nbatch_size: 32\nhidden: 48\nmax_grad_norm: 1.0\nseed: 3\n"},
}


class Adder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(hidden, 1)
        nn.init.eye_(self.rnn.weight_hh_l0)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.3)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.out(states[:, -1]).squeeze(-1)


def make_batch(size, length=60):
    values = torch.rand(size, length)
    marks = torch.zeros(size, length)
    marks[:, : length // 2].scatter_(1, torch.randint(0, length // 2, (size, 1)), 1.0)
    marks[:, length // 2 :].scatter_(1, torch.randint(0, length // 2, (size, 1)), 1.0)
    return torch.stack([values, marks], dim=-1), (values * marks).sum(1)


def train(config):
    torch.manual_seed(config["seed"])
    model = Adder(config["hidden"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    max_norm = config["max_grad_norm"]
    for step in range(config["steps"]):
        x, y = make_batch(config["batch_size"])
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step < 5:
            print(f"step {step:4d}  loss {loss.item():.4g}  (clip at {max_norm})")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with open("train.yaml") as file:
        train(yaml.safe_load(file))
