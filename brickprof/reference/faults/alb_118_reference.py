"""The training stops after 40 steps and is taken up again from a file that holds the weights and the step, and
nothing of the optimizer."""

import tempfile
from pathlib import Path

import torch

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-118-reference",
    "row": 35,
    "title": "the checkpoint holds no moments",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-GPUOPT-001", "C-RESUME-001"],
    "root_causes": ["checkpoint-incomplete", "resume-state-lost"],
    "bricks": [],
    "first_step": 40,
    "needs": "cpu",
    "settings": ["steps=80", "layers=2", "length=16", "evaluate_every=0", "checkpoint_every=40"],
}


class Broken(Trainer):
    def save(self):
        torch.save({"model": self.model.state_dict(), "step": self.step}, self.out / "last.pt")

    def resume(self):
        found = torch.load(self.out / "last.pt", weights_only=True)
        self.model.load_state_dict(found["model"])
        self.step = found["step"]
        self.schedule = self.build_schedule()
        for _ in range(self.step):
            self.schedule.step()

    def due(self, every):
        due = super().due(every)
        if due and self.step == 40 and every == self.config.checkpoint_every:
            self.save()
            self.optimizer = self.build_optimizer()  # the next job starts here
            self.resume()
        return due

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.out = Path(folder)
            super().run()


TRAINER = Broken
