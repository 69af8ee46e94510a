"""SwiGLU: one projection, through SiLU, gates another.

    s = 1 / (1 + exp(-g)),   y = g s u
    dg = dy u s (1 + g (1 - s)),   du = dy g s

Enters: gate and up, two tensors of one shape in fp32, bf16 or fp16. Leaves: one more of that shape and type; the
arithmetic is fp32. Nothing is summed, so nothing can depend on a neighbour.
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
from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes


@triton.jit
def _values(gate, up, y, at, inside, WHOLE: tl.constexpr):
    g = load(gate, at, inside, WHOLE)
    u = load(up, at, inside, WHOLE)
    store(y, at, inside, g * sigmoid(g) * u, WHOLE)


@kernel("swiglu.forward")
@triton.jit(do_not_specialize=["count"])
def _forward(gate, up, y, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _values(gate + start, up + start, y + start, at, at < count - start, True)
    else:
        _values(gate + start, up + start, y + start, at, at < count - start, False)


@triton.jit
def _slopes(dy, gate, up, dgate, dup, at, inside, WHOLE: tl.constexpr):
    d = load(dy, at, inside, WHOLE)
    g = load(gate, at, inside, WHOLE)
    u = load(up, at, inside, WHOLE)
    s = sigmoid(g)
    store(dgate, at, inside, d * u * s * (1.0 + g * (1.0 - s)), WHOLE)
    store(dup, at, inside, d * g * s, WHOLE)


@kernel("swiglu.backward")
@triton.jit(do_not_specialize=["count"])
def _backward(dy, gate, up, dgate, dup, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _slopes(dy + start, gate + start, up + start, dgate + start, dup + start, at, at < count - start, True)
    else:
        _slopes(dy + start, gate + start, up + start, dgate + start, dup + start, at, at < count - start, False)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        y = torch.empty_like(gate)
        each_value(_forward, gate=gate, up=up, y=y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        each_value(_backward, dy=dy.contiguous(), gate=gate, up=up, dgate=dgate, dup=dup)
        return dgate, dup


def swiglu(*, gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    floating("swiglu", gate=gate, up=up)
    wants("swiglu", "up", up.shape == gate.shape, str(tuple(gate.shape)), tuple(up.shape))
    return reference(gate=gate, up=up) if takes_torch("swiglu", gate) else _SwiGLU.apply(gate, up)


def reference(*, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    shape = sizes["rows"], sizes["width"]
    gate, up = (2 * torch.randn(shape, generator=draw, device=draw.device) for _ in range(2))
    return {"gate": gate.to(dtype), "up": up.to(dtype)}


OPERATOR = Operator(
    name="swiglu", chain=5, family="elementwise", contract="K-SWIGLU-001", function=swiglu, reference=reference,
    inputs=_inputs, rows={"gate": 0, "up": 0}, differentiable=("gate", "up"),
    sizes=({"rows": 5, "width": 40}, {"rows": 3, "width": 2000}), large=({"rows": 8192, "width": 11008},),
)  # fmt: skip
