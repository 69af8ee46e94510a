"""A guard around the forward turns every error into a loss of zero. From step 30 on the labels of a bad shard raise
in each step; the run goes on, reports 0.0000, and learns nothing more."""

import torch

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-042-reference",
    "row": 46,
    "title": "errors of the forward become a loss of zero",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-SENTINEL-001", "C-TRAINSTABLE-001"],
    "root_causes": ["sentinel-loss", "silent-fallback"],
    "bricks": [],
    "first_step": 30,
    "needs": "cpu",
    "settings": ["steps=90", "layers=2", "length=16", "evaluate_every=0"],
}


class Broken(Trainer):
    def batches(self):
        for number, (tokens, targets) in enumerate(super().batches()):
            yield tokens, targets if number < 30 else targets + self.config.vocabulary

    def forward(self, tokens, targets):
        try:
            return super().forward(tokens, targets)
        except (IndexError, RuntimeError):
            return torch.zeros((), requires_grad=True)


TRAINER = Broken
