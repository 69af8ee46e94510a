"""The optimizer is made by its default constructor: betas, weight decay and epsilon are torch's, and not those of the
configuration that lies beside the run."""

import torch

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-044b-reference",
    "row": 8,
    "title": "the optimizer is made with default betas and weight decay",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-HYPERPARAMS-001"],
    "root_causes": ["optimizer-hyperparameters-mismatch"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "layers=2", "length=16", "evaluate_every=0"],
    "run": ["--config", "declared.yaml"],
    "files": {
        "declared.yaml": "steps: 60\nbatch: 16\nlr: 0.003\nschedule: cosine\nwarmup: 10\nbetas: [0.9, 0.95]\n"
        "weight_decay: 0.1\nclip: 1.0\n"
    },
}


class Broken(Trainer):
    def build_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=self.config.lr)


TRAINER = Broken
