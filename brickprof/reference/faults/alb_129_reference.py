"""The cosine is stretched over a hundred times the length of the run, a number left over from another training. The
learning rate is at its peak when the run ends."""

import math

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-129-reference",
    "row": 43,
    "title": "the cosine's horizon is a hundred times the run",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-COSINE-001", "C-TRAINCFG-001"],
    "root_causes": ["schedule-horizon-wrong"],
    "bricks": [],
    "first_step": 10,
    "needs": "cpu",
    "settings": ["steps=70", "layers=2", "length=16", "evaluate_every=0"],
    "run": ["--config", "declared.yaml"],
    "files": {
        "declared.yaml": "steps: 70\nbatch: 16\nlr: 0.003\nschedule: cosine\nwarmup: 10\nbetas: [0.9, 0.95]\n"
        "weight_decay: 0.1\nclip: 1.0\n"
    },
}


class Broken(Trainer):
    def rate(self, step):
        if step < self.config.warmup:
            return (step + 1) / self.config.warmup
        return (1 + math.cos(math.pi * (step - self.config.warmup) / 7000)) / 2


TRAINER = Broken
