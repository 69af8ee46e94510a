"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied head.

Enters: token ids. Leaves: logits. Plain torch, one idea a class, names that read well in a report
(``blocks.3.mlp.gate``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brickprof.reference.config import Config


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale).to(x.dtype) * self.weight


class Rope(nn.Module):
    """Rotates pairs of channels by an angle that grows with the position."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, channels: int, length: int, base: float = 10_000.0) -> None:
        super().__init__()
        rates = base ** (-torch.arange(0, channels, 2) / channels)
        angles = torch.outer(torch.arange(length), rates)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        cosine, sine = self.cosine[: x.shape[-2]].to(x.dtype), self.sine[: x.shape[-2]].to(x.dtype)
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        channels = config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * channels, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * channels, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * channels, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.rope = Rope(channels, config.length)

    def forward(self, x: Tensor) -> Tensor:
        query = self.rope(self._heads(self.query(x), self.heads))
        key = self.rope(self._heads(self.key(x), self.kv_heads))
        value = self._heads(self.value(x), self.kv_heads)
        group = self.heads // self.kv_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = SwiGLU(config.width, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """The blocks and the last norm: what runs on the device when both ends stay on the host."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.decoder = Decoder(config)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
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
        return self.head(self.decoder(self.embed(tokens)))
