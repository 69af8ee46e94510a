"""A "portable" initialisation: every weight is a sine of its place. Neighbours are alike, rows repeat each other, and
the model starts with far fewer directions than it has weights."""

import torch

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "ent-309-reference",
    "row": 47,
    "title": "weights initialised as sin(index)",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-INIT-001"],
    "root_causes": ["bad-initialisation"],
    "bricks": ["embed", "decoder", ""],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "layers=2", "length=16", "evaluate_every=0"],
}


class Broken(Trainer):
    def build_model(self):
        model = super().build_model()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    wave = torch.sin(0.01 * torch.arange(parameter.numel()))
                    parameter.copy_(0.028 * wave.view_as(parameter))
        return model


TRAINER = Broken
