"""A checkpoint is saved in the middle with everything in it, all objects are built anew, and the training goes on."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {
    "id": "checkpoint-resume",
    "title": "exact resume of model, optimizer, schedule and random state",
    "family": "mlp",
    "trap": "a second model and a second optimizer appear in the middle and take over where the first ones stopped",
    "needs": "cpu",
}
STEPS, HALF = 160, 80


class Training:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=4e-3, total_steps=STEPS)
        self.step = 0

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}
        return parts | {"step": self.step, "rng": torch.get_rng_state()}

    def load(self, state):
        for name in ("model", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        self.step = state["step"]
        torch.set_rng_state(state["rng"])

    def run(self, until):
        while self.step < until:
            x = torch.randn(48, 6)
            y = x[:, :3].argmax(1)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            if self.step % 20 == 0:
                print(f"step {self.step} loss {loss.item():.4f}")
            self.step += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first = Training()
    first.run(HALF)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.pt"
        torch.save(first.state(), file)
        del first
        torch.manual_seed(99)
        second = Training()
        second.load(torch.load(file, weights_only=True))
    second.run(STEPS)
