"""The configuration declares gradient accumulation over eight micro-batches; the loop reads it, prints it, and makes
an update after each one. The effective batch is an eighth of what was declared."""

import torch
import yaml
from torch import nn

TRUTH = {
    "id": "cause-config-unused-accumulation",
    "row": None,
    "title": "the declared accumulation is not in force",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-TRAINCFG-001", "C-GA-001", "C-HYPERPARAMS-001"],
    "root_causes": ["config-unused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "files": {
        "train.yaml": "lr: 0.003\nbatch_size: 16\ngradient_accumulation_steps: 8\n"
        "max_steps: 200\nweight_decay: 0.01\nseed: 0\n"
    },
}


def main():
    torch.set_num_threads(1)
    with open("train.yaml") as file:
        config = yaml.safe_load(file)
    torch.manual_seed(config["seed"])
    micro, accumulation = config["batch_size"], config["gradient_accumulation_steps"]
    print(f"effective batch {micro * accumulation}")
    model = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    axes = torch.randn(12, 4)
    for step in range(config["max_steps"]):
        x = torch.randn(micro, 12)
        loss = nn.functional.cross_entropy(model(x), (x @ axes).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
