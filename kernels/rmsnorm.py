"""RMSNorm, with or without the residual sum before it.

    h = x + residual          (when there is one; h is returned too)
    r = 1 / sqrt(mean(h^2) + eps)
    y = h r w
    dh = r (g w - h r^2 mean(g w h)),   dw = sum over rows of g h r

Enters: rows of any length up to 65,536 in fp32, bf16 or fp16. Leaves: rows of the same type; all sums are in fp32.
A row is one program's in both directions, so its bits are its own. dw is summed in blocks of ROWS rows, always the
same ones counted from the first row, and the blocks are added in order: trailing rows with a zero gradient change
nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from brickprof.kernels._blocks import load, store
from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes

ROWS = 32
PAIR = 2
COLUMNS, _TOGETHER = 32, 128


@kernel("rmsnorm.forward")
@triton.jit
def _forward(
    x, residual, w, y, h, scale, width, eps,
    WIDTH: tl.constexpr, ADDS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    inside = at < width
    weight = load(w, at, inside, EVEN)
    values = load(x + row * width, at, inside, EVEN)
    if ADDS:
        values += load(residual + row * width, at, inside, EVEN)
        store(h + row * width, at, inside, values, EVEN)
        values = values.to(h.dtype.element_ty).to(tl.float32)
    r = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    tl.store(scale + row, r)
    store(y + row * width, at, inside, values * r * weight, EVEN)


@kernel("rmsnorm.backward")
@triton.jit(do_not_specialize=["rows"])
def _backward(
    g, h, w, scale, dres, dh, partial, rows, width,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, PAIR: tl.constexpr, ADDS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """ROWS rows, PAIR of them at a time so that their loads overlap."""
    block = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    weight = load(w, at, at < width, EVEN)
    dw = tl.zeros((WIDTH,), dtype=tl.float32)
    for first in tl.range(0, ROWS, PAIR):
        row = block * ROWS + first + tl.arange(0, PAIR)
        inside = (row[:, None] < rows) & (at[None, :] < width)
        place = row[:, None] * width + at[None, :]
        values = tl.load(h + place, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(scale + row, mask=row < rows, other=0.0)[:, None]
        unit = values * r
        dw += tl.sum(grad * unit, axis=0)
        grad *= weight[None, :]
        mean = tl.sum(grad * unit, axis=1)[:, None] / width
        out = r * (grad - unit * mean)
        if ADDS:
            out += tl.load(dres + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dh + place, out.to(dh.dtype.element_ty), mask=inside)
    store(partial + block * width, at, at < width, dw, EVEN)


@kernel("rmsnorm.weights")
@triton.jit(do_not_specialize=["blocks"])
def _weights(partial, dw, blocks, width, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < width
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in tl.range(0, blocks, TOGETHER):
        block = (first + tl.arange(0, TOGETHER)).to(tl.int64)
        part = tl.load(
            partial + block[:, None] * width + at[None, :],
            mask=(block[:, None] < blocks) & inside[None, :], other=0.0,
        )  # fmt: skip
        total += tl.sum(part, axis=0)
    tl.store(dw + at, total.to(dw.dtype.element_ty), mask=inside)


def _warps(width: int) -> int:
    return 4 if width <= 2048 else 8 if width <= 8192 else 16


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, w: Tensor, eps: float) -> Any:
        rows, width = x.shape
        adds = residual is not None
        h = torch.empty_like(x) if adds else x
        y, scale = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
        if rows and width:
            whole = triton.next_power_of_2(width)
            _forward.launch(
                (rows,), needs={"x": rows * width, "w": width},
                bytes_moved=x.element_size() * rows * width * (4 if adds else 2), flops=4 * rows * width,
                x=x, residual=residual if adds else x, w=w, y=y, h=h, scale=scale, width=width, eps=eps,
                WIDTH=whole, ADDS=adds, EVEN=whole == width, num_warps=_warps(width),
            )  # fmt: skip
        ctx.save_for_backward(h, w, scale)
        ctx.adds = adds
        return (y, h) if adds else y

    @staticmethod
    def backward(ctx: Any, g: Tensor, dres: Tensor | None = None) -> tuple[Tensor | None, ...]:
        h, w, scale = ctx.saved_tensors
        rows, width = h.shape
        g = g.contiguous()
        dh, dw = torch.empty_like(h), torch.zeros_like(w)
        if rows and width:
            blocks = triton.cdiv(rows, ROWS)
            partial = h.new_empty((blocks, width), dtype=torch.float32)
            whole = triton.next_power_of_2(width)
            adds = ctx.adds and dres is not None
            _backward.launch(
                (blocks,), needs={"g": rows * width, "partial": blocks * width},
                bytes_moved=h.element_size() * rows * width * 3, flops=8 * rows * width,
                g=g, h=h, w=w, scale=scale, dres=dres.contiguous() if adds and dres is not None else g, dh=dh,
                partial=partial, rows=rows, width=width,
                WIDTH=whole, ROWS=ROWS, ADDS=adds, PAIR=PAIR, EVEN=whole == width,
                num_warps=_warps(width),
            )  # fmt: skip
            _weights.launch(
                (triton.cdiv(width, COLUMNS),), needs={"dw": width}, bytes_moved=4 * blocks * width,
                partial=partial, dw=dw, blocks=blocks, width=width, COLUMNS=COLUMNS, TOGETHER=_TOGETHER, num_warps=8,
            )  # fmt: skip
        return dh, dh if ctx.adds else None, dw, None


def rmsnorm(*, x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Rows of x (..., H), each divided by its root mean square and scaled by weight (H)."""
    _checked(x, weight)
    if takes_torch("rmsnorm", x):
        return reference(x=x, weight=weight, eps=eps)
    rows, weight = x.reshape(x.shape[:-1].numel(), x.shape[-1]).contiguous(), weight.contiguous()
    return _RMSNorm.apply(rows, None, weight, eps).view_as(x)


def add_rmsnorm(*, x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """(norm of h, h) for h = x + residual, in one pass."""
    _checked(x, weight)
    floating("add_rmsnorm", x=x, residual=residual)
    wants("add_rmsnorm", "residual", residual.shape == x.shape, str(tuple(x.shape)), tuple(residual.shape))
    if takes_torch("add_rmsnorm", x):
        h = x + residual
        return reference(x=h, weight=weight, eps=eps), h
    rows, more = (each.reshape(x.shape[:-1].numel(), x.shape[-1]).contiguous() for each in (x, residual))
    y, h = _RMSNorm.apply(rows, more, weight.contiguous(), eps)
    return y.view_as(x), h.view_as(x)


def _checked(x: Tensor, weight: Tensor) -> None:
    floating("rmsnorm", x=x)
    floating("rmsnorm", weight=weight)
    wants("rmsnorm", "x", x.ndim >= 1 and x.shape[-1] <= 65_536, "rows of at most 65,536", tuple(x.shape))
    wants("rmsnorm", "weight", weight.shape == x.shape[-1:], f"({x.shape[-1]},)", tuple(weight.shape))
    wants("rmsnorm", "weight", weight.device == x.device, f"on {x.device}", weight.device)


def reference(*, x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class RMSNorm(nn.Module):
    """A drop-in for torch.nn.RMSNorm over the last dimension."""

    def __init__(self, width: int, eps: float = 1e-5, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rmsnorm(x=x, weight=self.weight, eps=self.eps)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Any]:
    x = torch.randn(sizes["rows"], sizes["width"], generator=draw, device=draw.device)
    weight = 1 + 0.1 * torch.randn(sizes["width"], generator=draw, device=draw.device)
    return {"x": x.to(dtype), "weight": weight.to(dtype), "eps": 1e-5}


OPERATOR = Operator(
    name="rmsnorm", chain=2, family="reduction", contract="K-RMSNORM-001", function=rmsnorm, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x", "weight"),
    sizes=({"rows": 5, "width": 48}, {"rows": 19, "width": 64}), large=({"rows": 8192, "width": 4096},),
)  # fmt: skip
