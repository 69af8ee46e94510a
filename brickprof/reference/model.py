"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied head.

Enters: token ids. Leaves: logits. One idea a class, names that read well in a report (``blocks.3.mlp.gate``); what
computes them, plain torch or our kernels, is said by ``Config.kernels`` and found in ``blocks.py``.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from brickprof.capture.attach import brick
from brickprof.reference.blocks import Embedding, Linear, RMSNorm, Rope, operations
from brickprof.reference.config import Config


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.kernels = config.heads, config.kv_heads, config.kernels
        channels = config.width // config.heads
        self.query = Linear(config.width, config.heads * channels, config.kernels)
        self.key = Linear(config.width, config.kv_heads * channels, config.kernels)
        self.value = Linear(config.width, config.kv_heads * channels, config.kernels)
        self.out = Linear(config.width, config.width, config.kernels)
        self.rope = Rope(channels, config.length, config.kernels)

    def forward(self, x: Tensor) -> Tensor:
        query = self.rope(self._heads(self.query(x), self.heads))
        key = self.rope(self._heads(self.key(x), self.kv_heads))
        value = self._heads(self.value(x), self.kv_heads)
        mixed = operations(self.kernels, x).attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class SwiGLU(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kernels = config.kernels
        self.gate = Linear(config.width, config.hidden, config.kernels)
        self.up = Linear(config.width, config.hidden, config.kernels)
        self.down = Linear(config.hidden, config.width, config.kernels)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(operations(self.kernels, x).swiglu(self.gate(x), self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.kernels)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, config.kernels)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """The blocks and the last norm: what runs on the device when both ends stay on the host."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.kernels)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.host_ends = config.host_ends
        self.embed = Embedding(config.vocabulary, config.width, config.kernels)
        self.decoder = Decoder(config)
        self.head = Linear(config.width, config.vocabulary, config.kernels)
        self.apply(self._initialise)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.down.weight")):  # what the residual stream sums up
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.layers))
        if config.tied:
            self.head.weight = self.embed.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        return self.head(self._on_device(hidden) if self.host_ends else self.decoder(hidden))

    def _on_device(self, hidden: Tensor) -> Tensor:
        """Hidden states go to the device and come back; backward sends their gradient: three transfers, whatever the
        depth. The gradient of what went in would be a fourth: the table learns as the head it is tied to, or not."""
        with brick("to_device", kind="transfer", transfers=1):
            hidden = hidden.detach().to(self.decoder.norm.weight)
        hidden = self.decoder(hidden)
        with brick("to_host", kind="transfer", transfers=1):
            return hidden.to(self.head.weight)
