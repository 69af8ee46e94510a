"""The loss is scaled by 65536 before the backward of a float32 training, and the gradients are never divided again.
The clip cuts every one of them, so that only their direction is left."""

from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-072-reference",
    "row": 20,
    "title": "a loss scale in float32, and a clip that eats it",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-LOSSSCALE-001", "C-CLIP-001", "FALSIFY-ALBOR-002"],
    "root_causes": ["loss-scale-misused"],
    "bricks": [],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "layers=2", "length=16", "evaluate_every=0"],
}


class Broken(Trainer):
    def backward(self, loss):
        (loss / self.config.accumulation * 65536.0).backward()


TRAINER = Broken
