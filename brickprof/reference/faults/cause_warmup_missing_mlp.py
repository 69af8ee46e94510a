"""The configuration asks for 40 updates of warm-up, and the rate is at its full 0.02 from the first update on. Adam's
second moment is still empty then, the first updates are far too large, and the loss jumps to many times its start."""

import torch
import yaml
from torch import nn

TRUTH = {
    "id": "cause-warmup-missing-mlp",
    "row": None,
    "title": "the declared warm-up is missing",
    "family": "mlp",
    "kind": "numeric",
    "contracts": ["C-COSINE-001", "C-LOSSSPIKE-001", "FALSIFY-ALBOR-001"],
    "root_causes": ["warmup-missing", "learning-rate-too-high"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "run": ["--config", "config.yaml"],
    "files": {"config.yaml": "learning_rate: 0.02\nwarmup_steps: 40\nmax_steps: 250\nwidth: 256\nbatch_size: 64\n"},
}


class Regressor(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.layers(x)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(6)
    with open("config.yaml") as file:
        config = yaml.safe_load(file)
    model = Regressor(16, config["width"])
    direction = torch.randn(16, 1) / 4
    optimizer = torch.optim.Adam(model.parameters(), lr=config["learning_rate"])
    for step in range(config["max_steps"]):
        x = torch.randn(config["batch_size"], 16)
        loss = nn.functional.mse_loss(model(x), torch.sin(2 * x @ direction))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < 6 or step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
