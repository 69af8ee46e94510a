"""Rotary positions: pairs of channels turned by an angle that grows with the position.

    y[left]  = x[left] cos - x[right] sin          angle of channel c at position p: p / base^(2c/D)
    y[right] = x[right] cos + x[left] sin          left, right: the two halves of the channels

Enters: x (..., S, D) and tables of cosines and sines (S, D/2) in fp32. Leaves: x of the same type. The backward is the
same turn the other way. The arithmetic is fp32; a position is turned by itself.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes

ROWS = 16


@kernel("rope.turn")
@triton.jit(do_not_specialize=["rows", "length"])
def _turn(
    x, cosine, sine, y, rows, length, half,
    BACK: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, HALF)
    inside = (row[:, None] < rows) & (channel[None, :] < half)
    angle = (row % length)[:, None] * half + channel[None, :]
    c = tl.load(cosine + angle, mask=inside, other=0.0)
    s = tl.load(sine + angle, mask=inside, other=0.0)
    if BACK:
        s = -s
    place = row[:, None].to(tl.int64) * (2 * half) + channel[None, :]
    left = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + place + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, (left * c - right * s).to(y.dtype.element_ty), mask=inside)
    tl.store(y + place + half, (right * c + left * s).to(y.dtype.element_ty), mask=inside)


def _turned(x: Tensor, cosine: Tensor, sine: Tensor, back: bool) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        rows = x.numel() // (2 * half)
        _turn.launch(
            (triton.cdiv(rows, ROWS),), needs={"x": x.numel(), "y": x.numel(), "cosine": cosine.numel()},
            bytes_moved=2 * x.element_size() * x.numel(), flops=3 * x.numel(),
            x=x, cosine=cosine, sine=sine, y=y, rows=rows, length=x.shape[-2], half=half,
            BACK=back, ROWS=ROWS, HALF=triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine, back=False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(dy, cosine, sine, back=True), None, None


def rope(*, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x (..., S, D) turned by the angles of tables (S, D/2)."""
    floating("rope", x=x)
    wants("rope", "x", x.ndim >= 2 and x.shape[-1] % 2 == 0, "(..., S, D) with an even D", tuple(x.shape))
    table = (x.shape[-2], x.shape[-1] // 2)
    for name, each in (("cosine", cosine), ("sine", sine)):
        wants("rope", name, tuple(each.shape) == table, str(table), tuple(each.shape))
        wants("rope", name, each.dtype == torch.float32, "float32", each.dtype)
        wants("rope", name, each.device == x.device, f"on {x.device}", each.device)
    if takes_torch("rope", x):
        return reference(x=x, cosine=cosine, sine=sine)
    return _Rope.apply(x, cosine.contiguous(), sine.contiguous())


def tables(*, length: int, channels: int, base: float = 10_000.0, device: Any = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, channels/2)."""
    rates = base ** (-torch.arange(0, channels, 2, device=device, dtype=torch.float32) / channels)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), rates)
    return angles.cos(), angles.sin()


def reference(*, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1).to(x.dtype)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    shape = sizes["batch"], sizes["heads"], sizes["length"], sizes["channels"]
    cosine, sine = tables(length=shape[2], channels=shape[3], device=draw.device)
    return {"x": torch.randn(shape, generator=draw, device=draw.device).to(dtype), "cosine": cosine, "sine": sine}


OPERATOR = Operator(
    name="rope", chain=1, family="elementwise", contract="K-ROPE-001", function=rope, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x",), sizes=({"batch": 3, "heads": 2, "length": 7, "channels": 8},),
    large=({"batch": 4, "heads": 32, "length": 4096, "channels": 128},),
)  # fmt: skip
