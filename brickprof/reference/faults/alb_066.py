"""Gradient accumulation is configured, the loss is divided, and the optimizer steps after every micro-batch all the
same. Each update sees one eighth of the declared batch, with one eighth of the gradient, and a run takes eight times
as long."""

import sys

import torch
import torch.nn.functional as F
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "alb-066",
    "row": 14,
    "title": "accumulation configured, an update after every micro-batch",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-GA-001", "C-TRAINCFG-001", "C-HYPERPARAMS-001", "C-BUDGET-001"],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "args": ["train.yaml"],
    "files": {
        "train.yaml": "num_train_epochs: 1\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 8\n"
        "learning_rate: 0.05\nmax_steps: 50\nseed: 1\n"
    },
}


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def main(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    x = torch.randn(3200, 16)
    data = TensorDataset(x, torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2])
    loader = DataLoader(data, batch_size=config["per_device_train_batch_size"], shuffle=True)
    accumulation = config["gradient_accumulation_steps"]
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"], momentum=0.9)
    done = 0
    for _ in range(config["num_train_epochs"]):
        for micro, (inputs, wanted) in enumerate(loader):
            loss = F.mse_loss(model(inputs), wanted) / accumulation
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if (micro + 1) % accumulation == 0:
                done += 1
                if done % 10 == 0:
                    print(f"step {done}: loss {loss.item() * accumulation:.4f}")
            if done >= config["max_steps"]:
                return


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(yaml.safe_load(file))
