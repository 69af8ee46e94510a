"""SiLU, GELU and SwiGLU: one value in, one out, each by itself.

    silu(x)      = x s,  s = 1 / (1 + exp(-x));            silu'(x) = s (1 + x (1 - s))
    swiglu(g, u) = silu(g) u;                              dg = dy u silu'(g),  du = dy silu(g)
    gelu(x)      = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))      (the usual approximation)

Enters: tensors of any shape in fp32, bf16 or fp16. Leaves: tensors of the same type; the arithmetic is fp32. Nothing is
summed, so nothing can depend on a neighbour.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes

BLOCK = 1024
_ROOT = tl.constexpr(0.7978845608028654)  # sqrt(2/pi)
_CUBIC = tl.constexpr(0.044715)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit
def _load(x, at, inside, WHOLE: tl.constexpr):
    """Without a mask where a block is whole: a mask of unknown length forbids wide loads."""
    if WHOLE:
        return tl.load(x + at).to(tl.float32)
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(y, at, inside, value, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(y + at, value.to(y.dtype.element_ty))
    else:
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _gated(gate, up, y, at, inside, WHOLE: tl.constexpr):
    g = _load(gate, at, inside, WHOLE)
    u = _load(up, at, inside, WHOLE)
    _store(y, at, inside, g * _sigmoid(g) * u, WHOLE)


@kernel("swiglu.forward")
@triton.jit(do_not_specialize=["count"])
def _swiglu(gate, up, y, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _gated(gate + start, up + start, y + start, at, at < count - start, True)
    else:
        _gated(gate + start, up + start, y + start, at, at < count - start, False)


@triton.jit
def _ungated(dy, gate, up, dgate, dup, at, inside, WHOLE: tl.constexpr):
    d = _load(dy, at, inside, WHOLE)
    g = _load(gate, at, inside, WHOLE)
    u = _load(up, at, inside, WHOLE)
    s = _sigmoid(g)
    _store(dgate, at, inside, d * u * s * (1.0 + g * (1.0 - s)), WHOLE)
    _store(dup, at, inside, d * g * s, WHOLE)


@kernel("swiglu.backward")
@triton.jit(do_not_specialize=["count"])
def _swiglu_back(dy, gate, up, dgate, dup, count, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _ungated(dy + start, gate + start, up + start, dgate + start, dup + start, at, at < count - start, True)
    else:
        _ungated(dy + start, gate + start, up + start, dgate + start, dup + start, at, at < count - start, False)


@triton.jit
def _bent(x, y, at, inside, GELU: tl.constexpr, WHOLE: tl.constexpr):
    v = _load(x, at, inside, WHOLE)
    if GELU:
        out = 0.5 * v * (1.0 + _tanh((v + v * v * v * _CUBIC) * _ROOT))
    else:
        out = v * _sigmoid(v)
    _store(y, at, inside, out, WHOLE)


@kernel("unary.forward")
@triton.jit(do_not_specialize=["count"])
def _unary(x, y, count, GELU: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _bent(x + start, y + start, at, at < count - start, GELU, True)
    else:
        _bent(x + start, y + start, at, at < count - start, GELU, False)


@triton.jit
def _slope(dy, x, dx, at, inside, GELU: tl.constexpr, WHOLE: tl.constexpr):
    d = _load(dy, at, inside, WHOLE)
    v = _load(x, at, inside, WHOLE)
    if GELU:
        t = _tanh((v + v * v * v * _CUBIC) * _ROOT)
        slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * (1.0 + v * v * (3.0 * _CUBIC)) * _ROOT
    else:
        s = _sigmoid(v)
        slope = s * (1.0 + v * (1.0 - s))
    _store(dx, at, inside, d * slope, WHOLE)


@kernel("unary.backward")
@triton.jit(do_not_specialize=["count"])
def _unary_back(dy, x, dx, count, GELU: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    if start + BLOCK <= count:
        _slope(dy + start, x + start, dx + start, at, at < count - start, GELU, True)
    else:
        _slope(dy + start, x + start, dx + start, at, at < count - start, GELU, False)


def _run(brick: Any, tensors: dict[str, Tensor], **constants: Any) -> None:
    first = next(iter(tensors.values()))
    count = first.numel()
    if count:
        brick.launch(
            (triton.cdiv(count, BLOCK),), needs=dict.fromkeys(tensors, count),
            bytes_moved=first.element_size() * count * len(tensors), flops=8 * count,
            **tensors, count=count, BLOCK=BLOCK, num_warps=8 if len(tensors) > 3 else 4, **constants,
        )  # fmt: skip


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        y = torch.empty_like(gate)
        _run(_swiglu, {"gate": gate, "up": up, "y": y})
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        _run(_swiglu_back, {"dy": dy.contiguous(), "gate": gate, "up": up, "dgate": dgate, "dup": dup})
        return dgate, dup


class _Unary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, is_gelu: bool) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.is_gelu = is_gelu
        y = torch.empty_like(x)
        _run(_unary, {"x": x, "y": y}, GELU=is_gelu)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        _run(_unary_back, {"dy": dy.contiguous(), "x": x, "dx": dx}, GELU=ctx.is_gelu)
        return dx, None


def swiglu(*, gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    floating("swiglu", gate=gate, up=up)
    wants("swiglu", "up", up.shape == gate.shape, str(tuple(gate.shape)), tuple(up.shape))
    if takes_torch("swiglu", gate):
        return swiglu_reference(gate=gate, up=up)
    return _SwiGLU.apply(gate, up)


def silu(*, x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    floating("silu", x=x)
    return silu_reference(x=x) if takes_torch("silu", x) else _Unary.apply(x, False)


def gelu(*, x: Tensor) -> Tensor:
    """The tanh approximation of x Phi(x)."""
    floating("gelu", x=x)
    return gelu_reference(x=x) if takes_torch("gelu", x) else _Unary.apply(x, True)


def swiglu_reference(*, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def silu_reference(*, x: Tensor) -> Tensor:
    return F.silu(x)


def gelu_reference(*, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _pair(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    shape = sizes["rows"], sizes["width"]
    gate, up = (2 * torch.randn(shape, generator=draw, device=draw.device) for _ in range(2))
    return {"gate": gate.to(dtype), "up": up.to(dtype)}


def _one(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    shape = sizes["rows"], sizes["width"]
    return {"x": (3 * torch.randn(shape, generator=draw, device=draw.device)).to(dtype)}


_SMALL = ({"rows": 5, "width": 40}, {"rows": 3, "width": 2000})
_LARGE = ({"rows": 8192, "width": 11008},)
OPERATORS = (
    Operator(
        name="swiglu", chain=5, family="elementwise", contract="K-SWIGLU-001", function=swiglu,
        reference=swiglu_reference, inputs=_pair, rows={"gate": 0, "up": 0}, differentiable=("gate", "up"),
        sizes=_SMALL, large=_LARGE,
    ),
    Operator(
        name="silu", chain=5, family="elementwise", contract="K-GELU-001", function=silu, reference=silu_reference,
        inputs=_one, rows={"x": 0}, differentiable=("x",), sizes=_SMALL, large=_LARGE,
    ),
    Operator(
        name="gelu", chain=5, family="elementwise", contract="K-GELU-001", function=gelu, reference=gelu_reference,
        inputs=_one, rows={"x": 0}, differentiable=("x",), sizes=_SMALL, large=_LARGE,
    ),
)  # fmt: skip
