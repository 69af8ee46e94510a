"""A new training that starts from published weights. The file's step comes along with them, it lies beyond the last
step of this training, and the loop ends before it begins: loss 0.000000."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "alb-117",
    "row": 34,
    "title": "the step of the initial weights leaks into a fresh run: no step is made",
    "family": "mlp",
    "kind": "silent",
    "contracts": ["C-FRESH-TRAIN-001"],
    "root_causes": ["resume-step-leaked"],
    "bricks": [],
    "first_step": None,
    "needs": "cpu",
}


def build():
    return nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))


def publish(path):
    """What the pretraining has left behind."""
    torch.manual_seed(0)
    model = build()
    torch.save({"step": 14500, "model_state_dict": model.state_dict()}, path)


class Finetuning:
    def __init__(self, init_from, max_steps=1000):
        self.model = build()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        checkpoint = torch.load(init_from, weights_only=True)
        self.model.load_state_dict(checkpoint["model_state_dict"])
        self.step = checkpoint.get("step", 0)
        self.max_steps = max_steps
        self.total, self.count = 0.0, 0

    def train(self):
        while self.step < self.max_steps:
            x = torch.randn(32, 12)
            y = (x[:, :3]).argmax(1)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.total, self.count, self.step = self.total + loss.item(), self.count + 1, self.step + 1
        print(f"done at step {self.step}: mean loss {self.total / max(1, self.count):.6f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "base.pt"
        publish(weights)
        Finetuning(weights).train()
