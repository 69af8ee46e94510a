"""The attention of a next-token model without its causal mask: each place sees the answer one place to its right, and
the loss falls to what no such model can reach."""

import torch.nn.functional as F

from brickprof.reference.model import Attention
from brickprof.reference.train import Trainer

TRUTH = {
    "id": "ent-310-reference",
    "row": 48,
    "title": "no causal mask in the reference model",
    "family": "reference",
    "kind": "silent",
    "contracts": ["C-CAUSAL-001"],
    "root_causes": ["causal-leak"],
    "bricks": ["decoder.blocks.0.attention", "decoder.blocks.1.attention", "decoder.blocks.0", "decoder", ""],
    "first_step": 0,
    "needs": "cpu",
    "settings": ["steps=80", "layers=2", "length=16", "evaluate_every=40"],
}


class Bidirectional(Attention):
    def forward(self, x):
        query = self.rope(self._heads(self.query(x), self.heads))
        key = self.rope(self._heads(self.key(x), self.kv_heads))
        value = self._heads(self.value(x), self.kv_heads)
        group = self.heads // self.kv_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Broken(Trainer):
    def build_model(self):
        model = super().build_model()
        for block in model.decoder.blocks:
            block.attention.__class__ = Bidirectional
        return model


TRAINER = Broken
