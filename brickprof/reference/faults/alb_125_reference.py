"""Every block is clipped to the limit on its own: blocks with small gradients keep them, blocks with large ones are
cut, and the direction of the whole step is another one."""

import torch

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-125-reference",
    "row": 41,
    "title": "clip applied block by block",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-CLIP-001"],
    "root_causes": ["grad-clip-wrong"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "layers=6", "width=32", "hidden=64", "length=12", "clip=0.05", "evaluate_every=0"],
}


class Broken(Trainer):
    def clip(self):
        parts = [self.model.embed, *self.model.decoder.blocks, self.model.decoder.norm]
        for part in parts:
            torch.nn.utils.clip_grad_norm_(part.parameters(), self.config.clip)


TRAINER = Broken
