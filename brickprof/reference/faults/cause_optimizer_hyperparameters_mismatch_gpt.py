"""The configuration declares betas 0.9 and 0.95, eps 1e-6 and weight decay 0.1. The optimizer gets the learning rate
and lives with the defaults of AdamW for everything else."""

import json

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "cause-optimizer-hyperparameters-mismatch-gpt",
    "row": None,
    "title": "betas, eps and weight decay of the configuration are not passed on",
    "family": "gpt",
    "kind": "silent",
    "contracts": ["C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-hyperparameters-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "config.json"],
    "files": {
        "config.json": '{"optimizer": {"name": "adamw", "lr": 0.002, "betas": [0.9, 0.95], "eps": 1e-6, '
        '"weight_decay": 0.1}, "training": {"max_steps": 100, "batch_size": 16, "seed": 1}}'
    },
}


class Model(nn.Module):
    def __init__(self, vocab=24, dim=32, length=12):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.wte(ids) + self.wpe
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def make_optimizer(model, options):
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    return kinds[options["name"]](model.parameters(), lr=options["lr"])


def main():
    torch.set_num_threads(1)
    with open("config.json") as file:
        config = json.load(file)
    training = config["training"]
    torch.manual_seed(training["seed"])
    model = Model()
    optimizer = make_optimizer(model, config["optimizer"])
    for step in range(training["max_steps"]):
        start = torch.randint(0, 24, (training["batch_size"], 1))
        ids = (start + 5 * torch.arange(13)) % 24
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
