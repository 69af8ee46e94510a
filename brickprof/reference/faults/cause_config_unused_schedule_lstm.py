"""The configuration asks for label smoothing, a cosine schedule and weight decay; the script reads the file and uses
the learning rate and the number of epochs only. No scheduler exists and the decay of the optimizer is 0."""

import json

import torch
from torch import nn

TRUTH = {
    "id": "cause-config-unused-schedule-lstm",
    "row": None,
    "title": "schedule and decay are declared and not used",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-HYPERPARAMS-001", "C-TRAINCFG-001", "C-COSINE-001"],
    "root_causes": ["config-unused", "optimizer-hyperparameters-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "run.json"],
    "files": {
        "run.json": '{"epochs": 6, "learning_rate": 0.005, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, '
        '"weight_decay": 0.1, "label_smoothing_factor": 0.1, "seed": 2}'
    },
}


class Namer(nn.Module):
    """Tells in which of three ways a sequence repeats itself."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 12)
        self.lstm = nn.LSTM(12, 24, batch_first=True)
        self.out = nn.Linear(24, 3)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0].amax(1))


def sequences(count):
    kinds = torch.randint(0, 3, (count,))
    seeds = torch.randint(0, 10, (count, 1))
    strides = kinds[:, None] + 1
    return (seeds + strides * torch.arange(9)) % 10, kinds


def main():
    torch.set_num_threads(1)
    with open("run.json") as file:
        config = json.load(file)
    torch.manual_seed(config["seed"])
    ids, kinds = sequences(640)
    model = Namer()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"])
    for epoch in range(config["epochs"]):
        for rows in torch.randperm(640).split(32):
            loss = nn.functional.cross_entropy(model(ids[rows]), kinds[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
