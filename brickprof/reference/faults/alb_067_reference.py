"""Twelve layers, and a clip that asks every gradient for its norm as a Python number. Over a hundred host reads a
step, and each of them waits for the device."""

import math

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-067-reference",
    "row": 15,
    "title": "clip that reads every parameter's norm to the host",
    "family": "reference",
    "kind": "performance",
    "contracts": ["C-GPUTRAIN-002", "C-BUDGET-001"],
    "root_causes": ["host-sync-in-loop"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "gpu": True,
    "settings": ["steps=40", "layers=12", "width=16", "hidden=32", "length=8", "evaluate_every=0", "kernels=torch"],
}


class Broken(Trainer):
    def clip(self):
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        total = math.sqrt(sum(p.grad.norm().item() ** 2 for p in parameters))
        if total > self.config.clip:
            for parameter in parameters:
                parameter.grad.mul_(self.config.clip / total)


TRAINER = Broken
