"""The cosine was given the length of another run: 15,500 steps where this one makes 160. At the end the learning rate
is still at its peak."""

import math
import sys

import torch
import torch.nn.functional as F
import yaml
from torch import nn

TRUTH = {
    "id": "alb-129",
    "row": 43,
    "title": "the cosine's horizon is a hundred times the run",
    "family": "lstm",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001"],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "args": ["train.yaml"],
    "files": {
        "train.yaml": "optimizer: adamw\nlearning_rate: 0.004\nlr_scheduler_type: cosine\nwarmup_steps: 10\n"
        "max_steps: 160\nbatch_size: 16\nseed: 0\n"
    },
}

TOTAL_STEPS = 15_500


class Counter(nn.Module):
    def __init__(self, symbols=12, width=40):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, ids):
        return self.head(self.lstm(self.embed(ids))[0])


def schedule(optimizer, config):
    warmup = config["warmup_steps"]

    def rate(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (TOTAL_STEPS - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def main(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    model = Counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    scheduler = schedule(optimizer, config)
    for step in range(config["max_steps"]):
        start, stride = torch.randint(12, (2, config["batch_size"], 1))
        line = (start + stride * torch.arange(13)) % 12
        loss = F.cross_entropy(model(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.3e}")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(yaml.safe_load(file))
