"""Five thousand steps and a warm-up of two hundred are declared, but one epoch over this data holds fifty. The run
ends after one percent of its plan, in the middle of the warm-up."""

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "id": "cause-config-infeasible-epochs",
    "row": None,
    "title": "one epoch cannot hold the declared steps",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-TRAINCFG-001", "C-COSINE-001"],
    "root_causes": ["config-infeasible", "schedule-never-peaks"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "train.yaml"],
    "files": {
        "train.yaml": "epochs: 1\nbatch_size: 16\nmax_steps: 5000\nwarmup_steps: 200\n"
        "lr: 0.003\nnum_samples: 800\nseed: 0\n"
    },
}


def schedule(step, warmup, total):
    return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))


def main():
    torch.set_num_threads(1)
    with open("train.yaml") as file:
        config = yaml.safe_load(file)
    torch.manual_seed(config["seed"])
    x = torch.randn(config["num_samples"], 10)
    y = (x[:, :3].sum(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=config["batch_size"], shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule(step, config["warmup_steps"], config["max_steps"])
    )
    step = 0
    for _ in range(config["epochs"]):
        for inputs, labels in loader:
            if step >= config["max_steps"]:
                return
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
            step += 1


if __name__ == "__main__":
    main()
