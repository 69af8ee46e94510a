"""softmax(x)[i] = exp(x[i] - max x) / sum_j exp(x[j] - max x), along the last dimension.

Enters: rows of at most 65,536 values. Leaves: rows of the same type that sum to one; dx = y (dy - sum(dy y)). A row is
one program's, its sums are fp32, and subtracting the maximum keeps every exponential at or below one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes


@kernel("softmax.forward")
@triton.jit
def _forward(x, y, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=float("-inf")).to(tl.float32)
    grown = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * width + at, (grown / tl.sum(grown, axis=0)).to(y.dtype.element_ty), mask=inside)


@kernel("softmax.backward")
@triton.jit
def _backward(dy, y, dx, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    inside = at < width
    out = tl.load(y + row * width + at, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(dy + row * width + at, mask=inside, other=0.0).to(tl.float32)
    dot = tl.sum(out * grad, axis=0)
    tl.store(dx + row * width + at, (out * (grad - dot)).to(dx.dtype.element_ty), mask=inside)


def _rows(brick: Any, tensors: dict[str, Tensor], width: int) -> None:
    first = next(iter(tensors.values()))
    rows = first.numel() // max(width, 1)
    if rows:
        brick.launch(
            (rows,), needs=dict.fromkeys(tensors, rows * width),
            bytes_moved=len(tensors) * first.element_size() * first.numel(), flops=5 * first.numel(),
            **tensors, width=width, WIDTH=triton.next_power_of_2(width), num_warps=4 if width <= 4096 else 16,
        )  # fmt: skip


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        _rows(_forward, {"x": x, "y": y}, x.shape[-1])
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        _rows(_backward, {"dy": dy.contiguous(), "y": y, "dx": dx}, y.shape[-1])
        return dx


def softmax(*, x: Tensor) -> Tensor:
    """Along the last dimension."""
    floating("softmax", x=x)
    wants("softmax", "x", x.ndim >= 1 and x.shape[-1] <= 65_536, "rows of at most 65,536", tuple(x.shape))
    return reference(x=x) if takes_torch("softmax", x) else _Softmax.apply(x)


def reference(*, x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    return {"x": (4 * torch.randn(sizes["rows"], sizes["width"], generator=draw, device=draw.device)).to(dtype)}


OPERATOR = Operator(
    name="softmax", chain=-1, family="reduction", contract="K-SOFTMAX-001", function=softmax, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x",), sizes=({"rows": 5, "width": 48}, {"rows": 3, "width": 130}),
    large=({"rows": 8192, "width": 4096},),
)  # fmt: skip
