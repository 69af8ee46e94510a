"""The rotation of queries and keys is right on the way forward; on the way back its gradient is handed through as if
nothing had been rotated. Query and key weights learn something that is almost right."""

from torch.autograd import Function

from brickprof.reference.model import Rope
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-119b",
    "row": 32,
    "title": "RoPE rotates forward, and its backward does not rotate back",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-BACKPARITY-001", "C-ROPE-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": [
        "decoder.blocks.0.attention.rope",
        "decoder.blocks.1.attention.rope",
        "decoder.blocks.0.attention.query",
        "decoder.blocks.0.attention.key",
        "decoder.blocks.0.attention",
        "decoder.blocks.1.attention",
    ],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "layers=2", "evaluate_every=30"],
}


class Straight(Function):
    @staticmethod
    def forward(ctx, x, rotated):
        return rotated

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class FastRope(Rope):
    def forward(self, x):
        return Straight.apply(x, super().forward(x).detach())


class Broken(Trainer):
    def build_model(self):
        model = super().build_model()
        for block in model.decoder.blocks:
            block.attention.rope.__class__ = FastRope
        return model


TRAINER = Broken
