"""The operations that the model is built of, in plain torch or on our kernels.

Enters: ``torch``, ``triton`` or ``auto``, and the tensor at hand. Leaves: the operations to compute with. ``auto`` goes
by the tensor: kernels where it lies on a CUDA device, torch elsewhere; so a model whose ends stay on the host has both.
Parameters are the model's own and have the same names and the same beginning either way, so checkpoints move.
"""

from __future__ import annotations

import functools
import os
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brickprof.errors import ConfigurationError


class Operations(Protocol):
    """What a decoder computes."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor: ...
    def embedding(self, tokens: Tensor, table: Tensor) -> Tensor: ...
    def rmsnorm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def rope(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor: ...
    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...
    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor: ...
    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor: ...


class InTorch:
    """As anybody would write them."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def embedding(self, tokens: Tensor, table: Tensor) -> Tensor:
        return F.embedding(tokens, table)

    def rmsnorm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        return (x.float() * scale).to(x.dtype) * weight

    def rope(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), target)


class InTriton:
    """The same on ``brickprof.kernels``: a row's bits are its own, whatever the batch."""

    def __init__(self) -> None:
        from brickprof.kernels import attention, cross_entropy, embedding, linear, rmsnorm, rope, swiglu

        self._linear, self._embedding, self._rmsnorm = linear.linear, embedding.embedding, rmsnorm.rmsnorm
        self._rope, self._attention, self._swiglu = rope.rope, attention.attention, swiglu.swiglu
        self._cross_entropy = cross_entropy.cross_entropy

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._linear(x=x, weight=weight)

    def embedding(self, tokens: Tensor, table: Tensor) -> Tensor:
        return self._embedding(tokens=tokens, table=table)

    def rmsnorm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._rmsnorm(x=x, weight=weight, eps=eps)

    def rope(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return self._rope(x=x, cosine=cosine.float(), sine=sine.float())

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._attention(q=query, k=key, v=value)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._swiglu(gate=gate, up=up)

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(logits=logits, target=target)


_in_torch = InTorch()
_in_triton = functools.cache(InTriton)


def operations(kernels: str, tensor: Tensor) -> Operations:
    """What computes on ``tensor`` when ``kernels`` was asked for."""
    if kernels == "triton" or (kernels == "auto" and tensor.is_cuda):
        return _in_triton()
    return _in_torch


def refuse_triton_on_a_host(kernels: str, *, device: torch.device, host_ends: bool) -> None:
    """Says at the start what the first forward would stumble over."""
    if kernels != "triton" or os.environ.get("TRITON_INTERPRET") == "1":
        return
    if device.type != "cuda" or host_ends:
        where = "both ends of the model stay on the host" if device.type == "cuda" else f"the device is {device.type}"
        raise ConfigurationError(
            f"kernels is 'triton', which runs on CUDA devices, and {where}.",
            "Take --kernels auto or torch; or set TRITON_INTERPRET=1 to run the kernels in Triton's interpreter.",
        )


class Linear(nn.Linear):
    """Without a bias."""

    def __init__(self, width: int, out: int, kernels: str) -> None:
        super().__init__(width, out, bias=False)
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        return operations(self.kernels, x).linear(x, self.weight)


class Embedding(nn.Embedding):
    def __init__(self, vocabulary: int, width: int, kernels: str) -> None:
        super().__init__(vocabulary, width)
        self.kernels = kernels

    def forward(self, tokens: Tensor) -> Tensor:
        return operations(self.kernels, tokens).embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, width: int, kernels: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.kernels, self.eps = kernels, eps

    def forward(self, x: Tensor) -> Tensor:
        return operations(self.kernels, x).rmsnorm(x, self.weight, self.eps)


class Rope(nn.Module):
    """Rotates pairs of channels by an angle that grows with the position."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, channels: int, length: int, kernels: str, base: float = 10_000.0) -> None:
        super().__init__()
        self.kernels = kernels
        rates = base ** (-torch.arange(0, channels, 2) / channels)
        angles = torch.outer(torch.arange(length), rates)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        return operations(self.kernels, x).rope(x, self.cosine[:length], self.sine[:length])
