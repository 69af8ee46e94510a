"""A fused SwiGLU with its own backward. The gradient of the up branch was left out, and the gate's gradient lacks its
factor: ``up`` never moves, and nothing says so."""

import torch
from torch import nn
from torch.autograd import Function

from brickprof.reference.model import SwiGLU
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-043b",
    "row": 4,
    "title": "SwiGLU backward without the up branch",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": [
        "decoder.blocks.0.mlp.up",
        "decoder.blocks.1.mlp.up",
        "decoder.blocks.2.mlp.up",
        "decoder.blocks.3.mlp.up",
        "decoder.blocks.3.mlp",
    ],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "length=24", "evaluate_every=0"],
}


class FusedSwiGLU(Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate)
        return gate * gate.sigmoid() * up

    @staticmethod
    def backward(ctx, grad):
        (gate,) = ctx.saved_tensors
        s = gate.sigmoid()
        grad_gate = grad * s * (1 + gate * (1 - s))
        return grad_gate, torch.zeros_like(grad)


class Fused(nn.Module):
    def __init__(self, mlp: SwiGLU):
        super().__init__()
        self.gate, self.up, self.down = mlp.gate, mlp.up, mlp.down

    def forward(self, x):
        return self.down(FusedSwiGLU.apply(self.gate(x), self.up(x)))


class Broken(Trainer):
    def build_model(self):
        model = super().build_model()
        for block in model.decoder.blocks:
            block.mlp = Fused(block.mlp)
        return model


TRAINER = Broken
