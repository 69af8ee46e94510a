"""The configuration promises 5,000 steps and a warm-up of 2,000, but one epoch with an accumulation of 128 holds 43
updates. The learning rate never leaves the ground, the loss stays where it began, and the run ends by itself."""

import argparse

import torch
import torch.nn.functional as F
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "alb-060",
    "row": 11,
    "title": "one epoch, accumulation 128: 43 of 5,000 steps, warm-up never ends",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-TRAINCFG-001", "C-COSINE-001"],
    "root_causes": ["config-infeasible", "schedule-never-peaks"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "args": ["--config", "train.yaml"],
    "files": {
        "train.yaml": "data:\n  num_sequences: 22079\n  sequence_length: 4\ntraining:\n  epochs: 1\n  batch_size: 4\n"
        "  gradient_accumulation_steps: 128\n  max_steps: 5000\n  learning_rate: 3.0e-4\n  warmup_steps: 2000\n"
        "  max_grad_norm: 1.0\n  seed: 42\n"
    },
}

VOCAB, WIDTH = 512, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head(torch.relu(self.mix(self.embed(ids))))


def corpus(count, length):
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(VOCAB, (count, 1), generator=generator)
    return TensorDataset((start + 7 * torch.arange(length + 1)) % VOCAB)


def warmup(config):
    return lambda step: min(1.0, (step + 1) / config["warmup_steps"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    with open(parser.parse_args().config) as file:
        config = yaml.safe_load(file)
    data, config = config["data"], config["training"]
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    lines = corpus(data["num_sequences"], data["sequence_length"])
    loader = DataLoader(lines, config["batch_size"], shuffle=True, drop_last=True, collate_fn=gather)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(config))
    accumulation, step = config["gradient_accumulation_steps"], 0
    for _ in range(config["epochs"]):
        for micro, ids in enumerate(loader, 1):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            (loss / accumulation).backward()
            if micro % accumulation:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), config["max_grad_norm"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            print(f"step {step}/{config['max_steps']} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
            if step >= config["max_steps"]:
                return


def gather(rows):
    return torch.stack([row for (row,) in rows])


if __name__ == "__main__":
    main()
