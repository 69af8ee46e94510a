"""y[b, j, i] = x[b, i, j]: a batched transpose that is written out.

Enters: x (..., R, C) of any type of 1, 2, 4 or 8 bytes. Leaves: a contiguous (..., C, R). Bits are moved, never read
as numbers, so NaN payloads and signed zeros arrive as they left. Tiles pass through shared memory so that both reads
and writes are along rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes

TILE = 64
_AS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@kernel("transpose")
@triton.jit(do_not_specialize=["rows", "columns"])
def _transpose(x, y, rows, columns, TILE: tl.constexpr):
    across = tl.cdiv(columns, TILE)
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at_r = (tile // across) * TILE + tl.arange(0, TILE)
    at_c = (tile % across) * TILE + tl.arange(0, TILE)
    start = batch * rows * columns
    inside = (at_r[:, None] < rows) & (at_c[None, :] < columns)
    values = tl.load(x + start + at_r[:, None].to(tl.int64) * columns + at_c[None, :], mask=inside, other=0)
    turned = tl.trans(values)
    inside = (at_c[:, None] < columns) & (at_r[None, :] < rows)
    tl.store(y + start + at_c[:, None].to(tl.int64) * rows + at_r[None, :], turned, mask=inside)


def _turned(x: Tensor) -> Tensor:
    x = x.contiguous()
    *batch, rows, columns = x.shape
    y = x.new_empty((*batch, columns, rows))
    if x.numel():
        bits = _AS[x.element_size()]
        each = rows * columns
        _transpose.launch(
            (triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE), x.numel() // each),
            needs={"x": x.numel(), "y": x.numel()}, bytes_moved=2 * x.numel() * x.element_size(),
            x=x.view(bits), y=y.view(bits), rows=rows, columns=columns, TILE=TILE, num_warps=4,
        )  # fmt: skip
    return y


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _turned(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return _turned(dy)


def transpose(*, x: Tensor) -> Tensor:
    """The last two dimensions of x swapped, in memory."""
    wants("transpose", "x", isinstance(x, Tensor) and x.ndim >= 2, "a tensor of two or more dimensions", x)
    wants("transpose", "x", x.element_size() in _AS, "of a type of 1, 2, 4 or 8 bytes", x.dtype)
    wants("transpose", "x", x.shape[:-2].numel() < 65_536, "at most 65,535 matrices", tuple(x.shape))
    return reference(x=x) if takes_torch("transpose", x) else _Transpose.apply(x)


def reference(*, x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous()


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    shape = sizes["batch"], sizes["rows"], sizes["columns"]
    return {"x": torch.randn(shape, generator=draw, device=draw.device).to(dtype)}


OPERATOR = Operator(
    name="transpose", chain=-1, family="elementwise", contract="K-TRANSPOSE-001", function=transpose,
    reference=reference, inputs=_inputs, rows={"x": 0}, differentiable=("x",),
    sizes=({"batch": 3, "rows": 5, "columns": 70},), large=({"batch": 32, "rows": 2048, "columns": 2050},),
)  # fmt: skip
