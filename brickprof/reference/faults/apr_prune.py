"""A network is trained, pruned and trained on. The configuration asks for a sparsity of 0.3; the flag never reaches
the pruning, whose default is one half."""

import sys

import torch
import torch.nn.functional as F
import yaml
from torch import nn
from torch.nn.utils import prune

TRUTH = {
    "id": "apr-prune",
    "row": 50,
    "title": "a sparsity of 0.3 is declared, half of the weights are pruned",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["FALSIFY-ALBOR-008", "C-CONFIG-001"],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 60,
    "needs": "cpu",
    "run": ["--config", "prune.yaml"],
    "args": ["prune.yaml"],
    "files": {"prune.yaml": "lr: 0.002\nbatch_size: 32\nsparsity: 0.3\nprune_at_step: 60\nmax_steps: 140\nseed: 0\n"},
}


def build():
    return nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6))


def sparsify(model, amount=0.5):
    for layer in model:
        if isinstance(layer, nn.Linear):
            prune.l1_unstructured(layer, "weight", amount=amount)


def sparsity(model):
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    return sum((w == 0).sum().item() for w in weights) / sum(w.numel() for w in weights)


def main(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    model, labeller = build(), torch.randn(20, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for step in range(config["max_steps"]):
        if step == config["prune_at_step"]:
            sparsify(model)
            optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        x = torch.randn(config["batch_size"], 20)
        loss = F.cross_entropy(model(x), (x @ labeller).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} sparsity {sparsity(model):.3f}")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(yaml.safe_load(file))
