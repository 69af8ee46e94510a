"""The skip connections carry their value forward and nothing back: they were detached to save memory. The gradient
has to go through every sublayer, and the early blocks get next to nothing."""

from brickprof.reference.model import Block
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "alb-126",
    "row": 42,
    "title": "the skip connections are detached",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-RESIDUAL-001", "C-GRADFLOW-001"],
    "root_causes": ["residual-path-broken", "vanishing-gradients", "no-gradient-path"],
    "bricks": [
        "embed",
        "decoder.blocks.0",
        "decoder.blocks.1",
        "decoder.blocks.2",
        "decoder.blocks.3",
        "decoder.blocks.4",
        "decoder.blocks.5",
        "decoder.blocks.6",
        "decoder.blocks.7",
        "decoder.blocks",
    ],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=50", "layers=8", "width=32", "hidden=64", "length=16", "tied=false", "evaluate_every=0"],
}


class LeanBlock(Block):
    def forward(self, x):
        x = x.detach() + self.attention(self.attention_norm(x))
        return x.detach() + self.mlp(self.mlp_norm(x))


class Broken(Trainer):
    def build_model(self):
        model = super().build_model()
        for block in model.decoder.blocks:
            block.__class__ = LeanBlock
        return model


TRAINER = Broken
