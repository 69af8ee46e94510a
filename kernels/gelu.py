"""GELU in its usual approximation: x Phi(x) with a tanh in the place of the error function.

    t = tanh(sqrt(2/pi) (x + 0.044715 x^3)),   gelu(x) = x/2 (1 + t)
    dx = dy ((1 + t)/2 + x/2 (1 - t^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2))

Enters: a tensor of any shape in fp32, bf16 or fp16. Leaves: one of the same shape and type; the arithmetic is fp32, and
tanh(z) is 2 sigmoid(2 z) - 1. Nothing is summed, so nothing can depend on a neighbour.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from brickprof.kernels._blocks import each_value, load, store
from brickprof.kernels.silu import sigmoid
from brickprof.operators.launch import floating, kernel, takes_torch
from brickprof.operators.operator import Operator, Sizes

_ROOT = tl.constexpr(0.7978845608028654)  # sqrt(2/pi)
_CUBIC = tl.constexpr(0.044715)


@triton.jit
def _tanh(x):
    return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def _values(x, y, at, inside, WHOLE: tl.constexpr):
    v = load(x, at, inside, WHOLE)
    store(y, at, inside, 0.5 * v * (1.0 + _tanh((v + v * v * v * _CUBIC) * _ROOT)), WHOLE)


@kernel("gelu.forward")
@triton.jit(do_not_specialize=["count"])
def _forward(x, y, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _values(x + start, y + start, at, at < count - start, True)
    else:
        _values(x + start, y + start, at, at < count - start, False)


@triton.jit
def _slopes(dy, x, dx, at, inside, WHOLE: tl.constexpr):
    d = load(dy, at, inside, WHOLE)
    v = load(x, at, inside, WHOLE)
    t = _tanh((v + v * v * v * _CUBIC) * _ROOT)
    slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * (1.0 + v * v * (3.0 * _CUBIC)) * _ROOT
    store(dx, at, inside, d * slope, WHOLE)


@kernel("gelu.backward")
@triton.jit(do_not_specialize=["count"])
def _backward(dy, x, dx, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _slopes(dy + start, x + start, dx + start, at, at < count - start, True)
    else:
        _slopes(dy + start, x + start, dx + start, at, at < count - start, False)


class _GELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        each_value(_forward, x=x, y=y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        each_value(_backward, dy=dy.contiguous(), x=x, dx=dx)
        return dx


def gelu(*, x: Tensor) -> Tensor:
    """The tanh approximation of x Phi(x)."""
    floating("gelu", x=x)
    return reference(x=x) if takes_torch("gelu", x) else _GELU.apply(x)


def reference(*, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    return {"x": (3 * torch.randn(sizes["rows"], sizes["width"], generator=draw, device=draw.device)).to(dtype)}


OPERATOR = Operator(
    name="gelu", chain=5, family="elementwise", contract="K-GELU-001", function=gelu, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x",), sizes=({"rows": 5, "width": 40}, {"rows": 3, "width": 2000}),
    large=({"rows": 8192, "width": 11008},),
)  # fmt: skip
