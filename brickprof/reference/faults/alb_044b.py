"""Two optimizers: the one for the blocks is built from the configuration, the one for embedding and head by its default
constructor. Its betas, weight decay and learning rate are not the declared ones."""

import sys

import torch
import torch.nn.functional as F
import yaml
from torch import nn

TRUTH = {
    "id": "alb-044b",
    "row": 8,
    "title": "a second optimizer made by the default constructor",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-hyperparameters-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "args": ["train.yaml"],
    "files": {
        "train.yaml": "model:\n  hidden_size: 48\n  num_layers: 2\ntraining:\n  max_steps: 80\n  batch_size: 16\n"
        "  seed: 5\noptimizer:\n  lr: 0.001\n  beta1: 0.9\n  beta2: 0.95\n  weight_decay: 0.1\n"
    },
}

VOCAB, LENGTH = 24, 16


class Decoder(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids) + self.position, mask=self.mask))


def make_optimizers(model, config):
    inner = [*model.blocks.parameters(), model.position]
    ends = [*model.embed.parameters(), *model.head.parameters()]
    blocks = torch.optim.AdamW(
        inner, lr=config["lr"], betas=(config["beta1"], config["beta2"]), weight_decay=config["weight_decay"]
    )
    return blocks, torch.optim.AdamW(ends)


def batch(size):
    a, b = torch.randint(VOCAB, (2, size, 1))
    line = (a + (b % 5 + 1) * torch.arange(LENGTH + 1)) % VOCAB
    return line[:, :-1], line[:, 1:]


def main(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["training"]["seed"])
    model = Decoder(config["model"]["hidden_size"], config["model"]["num_layers"])
    optimizers = make_optimizers(model, config["optimizer"])
    for step in range(config["training"]["max_steps"]):
        ids, targets = batch(config["training"]["batch_size"])
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(yaml.safe_load(file))
