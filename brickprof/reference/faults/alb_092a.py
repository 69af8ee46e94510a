"""An RMSNorm with its own backward that never writes the gradient of its gain: the buffer it returns is the zeros it
was made with. The gains of all norms stay at one."""

import torch
from torch.autograd import Function

from brickprof.reference.model import RMSNorm
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-092a",
    "row": 27,
    "title": "the norm's backward leaves the gradient of the gain at zero",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-GRADFLOW-001"],
    "root_causes": ["no-gradient-path"],
    "bricks": [
        "decoder.norm",
        "decoder.blocks.0.attention_norm",
        "decoder.blocks.0.mlp_norm",
        "decoder.blocks.1.attention_norm",
        "decoder.blocks.1.mlp_norm",
    ],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=60", "layers=2", "length=16", "evaluate_every=0"],
}


class FusedNorm(Function):
    @staticmethod
    def forward(ctx, x, gain, eps):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, gain, scale)
        return x * scale * gain

    @staticmethod
    def backward(ctx, grad):
        x, gain, scale = ctx.saved_tensors
        grad_gain = torch.zeros_like(gain)
        inner = grad * gain
        grad_x = scale * (inner - x * scale.square() * (inner * x).mean(-1, keepdim=True))
        return grad_x, grad_gain, None


class FastNorm(RMSNorm):
    def forward(self, x):
        return FusedNorm.apply(x, self.weight, self.eps)


class Broken(Trainer):
    def build_model(self):
        model = super().build_model()
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.__class__ = FastNorm
        return model


TRAINER = Broken
