"""SiLU: a value times its own sigmoid.

    s = 1 / (1 + exp(-x)),   silu(x) = x s,   dx = dy s (1 + x (1 - s))

Enters: a tensor of any shape in fp32, bf16 or fp16. Leaves: one of the same shape and type; the arithmetic is fp32.
Nothing is summed, so nothing can depend on a neighbour.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from brickprof.kernels._blocks import each_value, load, store
from brickprof.operators.launch import floating, kernel, takes_torch
from brickprof.operators.operator import Operator, Sizes


@triton.jit
def sigmoid(x) -> tl.tensor:
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _values(x, y, at, inside, WHOLE: tl.constexpr):
    v = load(x, at, inside, WHOLE)
    store(y, at, inside, v * sigmoid(v), WHOLE)


@kernel("silu.forward")
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
    s = sigmoid(v)
    slope = s * (1.0 + v * (1.0 - s))
    store(dx, at, inside, d * slope, WHOLE)


@kernel("silu.backward")
@triton.jit(do_not_specialize=["count"])
def _backward(dy, x, dx, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _slopes(dy + start, x + start, dx + start, at, at < count - start, True)
    else:
        _slopes(dy + start, x + start, dx + start, at, at < count - start, False)


class _SiLU(torch.autograd.Function):
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


def silu(*, x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    floating("silu", x=x)
    return reference(x=x) if takes_torch("silu", x) else _SiLU.apply(x)


def reference(*, x: Tensor) -> Tensor:
    return F.silu(x)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    return {"x": (3 * torch.randn(sizes["rows"], sizes["width"], generator=draw, device=draw.device)).to(dtype)}


OPERATOR = Operator(
    name="silu", chain=5, family="elementwise", contract="K-GELU-001", function=silu, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x",), sizes=({"rows": 5, "width": 40}, {"rows": 3, "width": 2000}),
    large=({"rows": 8192, "width": 11008},),
)  # fmt: skip
