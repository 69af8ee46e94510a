"""y = x w^T (+ nothing): the product of a linear layer, and both products of its backward.

    forward   y[m, n]  = sum_k x[m, k] w[n, k]
    dgrad     dx[m, k] = sum_n dy[m, n] w[n, k]
    wgrad     dw[n, k] = sum_m dy[m, n] x[m, k]

Enters: bf16, fp16 or fp32 matrices. Leaves: a product of the same type, summed in fp32 (fp32 without TF32) in ONE
order: along the summed dimension from its start to its end, a tile at a time, never split between programs. So the bits
of a row depend neither on how many rows there are nor on where it stands, and trailing rows whose gradient is zero
leave dw as it was.

Which tile computes a row is chosen by size, for speed only: every tile adds in the same order, and a test holds them
to the same bits. Aligned operands come through the tensor memory accelerator; others through pointers, with the same
order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from brickprof.operators.launch import extent, floating, kernel, multiprocessors, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes


@dataclass(frozen=True)
class Tile:
    """How a product is cut. The summed dimension is walked in steps of ``k``; nothing here changes a bit."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    group: int = 8
    halves: bool = False


@kernel("gemm.tma")
@triton.jit(do_not_specialize=["m", "n", "k"])
def _through_descriptors(
    a, b, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr,
    A_UPRIGHT: tl.constexpr, B_UPRIGHT: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """Persistent: as many programs as multiprocessors, each taking every so-manieth tile of c."""
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    steps = tl.cdiv(k, BK)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=FLATTEN):
        row, column = _place(tile, rows, columns, GROUP)
        row, column = row * BM, column * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(steps):
            if A_UPRIGHT:
                left = a.load([step * BK, row]).T
            else:
                left = a.load([row, step * BK])
            if B_UPRIGHT:
                right = b.load([step * BK, column])
            else:
                right = b.load([column, step * BK]).T
            total = tl.dot(left, right, total, input_precision="ieee")
        if HALVES:
            both = tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1))
            first, second = tl.split(both)
            c.store([row, column], first.to(c.dtype))
            c.store([row, column + BN // 2], second.to(c.dtype))
        else:
            c.store([row, column], total.to(c.dtype))


@triton.jit
def _place(tile, rows, columns, GROUP: tl.constexpr):
    """Which tile of c comes next: down a band of GROUP rows, so that neighbours share what they read."""
    band = tile // (GROUP * columns)
    first = band * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = tile - band * GROUP * columns
    return first + inside % height, inside // height


@kernel("gemm.pointers")
@triton.jit(do_not_specialize=["m", "n", "k", "a_row", "a_column", "b_row", "b_column"])
def _through_pointers(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Any strides, any alignment; ``a`` is (m, k) and ``b`` is (k, n) by their strides."""
    row, column = _place(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    at_m = row * BM + tl.arange(0, BM).to(tl.int64)
    at_n = column * BN + tl.arange(0, BN).to(tl.int64)
    at_k = tl.arange(0, BK).to(tl.int64)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        here = step * BK + at_k
        left = tl.load(
            a + at_m[:, None] * a_row + here[None, :] * a_column,
            mask=(at_m[:, None] < m) & (here[None, :] < k), other=0.0,
        )  # fmt: skip
        right = tl.load(
            b + here[:, None] * b_row + at_n[None, :] * b_column,
            mask=(here[:, None] < k) & (at_n[None, :] < n), other=0.0,
        )  # fmt: skip
        if WIDE:  # the interpreter multiplies bf16 wrongly
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
    place = c + at_m[:, None] * n + at_n[None, :]
    tl.store(place, total.to(c.dtype.element_ty), mask=(at_m[:, None] < m) & (at_n[None, :] < n))


LARGE = Tile(128, 256, 64, stages=4, warps=8, halves=True)
WIDE_RESULT = Tile(128, 256, 64, stages=3, warps=8, halves=True)  # fp32 results take the room of one stage
EXACT = Tile(64, 64, 32, stages=3, warps=4)  # fp32: no tensor cores, so no large tiles
NARROW = {  # most rows -> columns from which on -> the quickest tile; measured on an H200 by benchmarks/kernels.py
    16: {0: Tile(16, 32, 256, 4, 4), 8192: Tile(16, 128, 128, 4, 4)},
    64: {0: Tile(64, 32, 256, 4, 4), 24_000: Tile(64, 64, 128, 6, 4)},
    128: {0: Tile(64, 64, 128, 6, 4), 8192: Tile(128, 128, 64, 6, 8)},
}
TILES = (LARGE, *{tile for row in NARROW.values() for tile in row.values()})
"""All that a product of 16-bit values can be cut into: a test holds them to the same bits."""


def tile_for(m: int, n: int, k: int, dtype: torch.dtype) -> Tile:
    """The quickest of the tiles that give the same bits."""
    if dtype == torch.float32:
        return EXACT
    for most, tiles in NARROW.items():
        if m <= most:
            return tiles[max(start for start in tiles if n >= start)]
    return LARGE


def product(*, a: Tensor, b: Tensor, tile: Tile | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """a (M, K) times b (K, N), both as views with any strides; ``dtype``: of the result, when it is to be wider."""
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty((m, n), dtype=dtype)
    if m == 0 or n == 0:
        return c
    if k == 0:
        return c.zero_()
    tile = tile or tile_for(m, n, k, a.dtype)
    if c.element_size() > a.element_size() and tile == LARGE:
        tile = WIDE_RESULT
    if _accelerated(a) and _accelerated(b) and _accelerated(c) and a.dtype != torch.float32:
        _launch_tma(a, b, c, tile)
    else:
        _launch_pointers(a, b, c, tile)
    return c


def _accelerated(x: Tensor) -> bool:
    """Whether the tensor memory accelerator reads ``x``: 16-byte aligned, one stride 1, the other 16-byte aligned."""
    if not x.is_cuda or not _has_accelerator(x.device.index):
        return False
    long, short = max(x.stride()), min(x.stride())
    if short != 1 and 1 not in x.shape:
        return False
    return x.data_ptr() % 16 == 0 and (long * x.element_size()) % 16 == 0 and long >= 1


@functools.cache
def _has_accelerator(index: int) -> bool:
    return torch.cuda.get_device_capability(index)[0] >= 9


def _described(x: Tensor, block: list[int], upright: bool) -> Any:
    """A descriptor whose last dimension is contiguous; ``upright`` when that took a transposition."""
    if upright:
        x, block = x.T, block[::-1]
    return TensorDescriptor(x, list(x.shape), [x.stride(0), 1], block)


def _upright(x: Tensor) -> bool:
    return x.stride(1) != 1


def _launch_tma(a: Tensor, b: Tensor, c: Tensor, tile: Tile) -> None:
    (m, k), n = a.shape, b.shape[1]
    a_upright, b_flat = _upright(a), _upright(b)
    width = tile.n // 2 if tile.halves else tile.n
    tiles = triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n)
    _through_descriptors.launch(
        (min(multiprocessors(a), tiles),),
        bytes_moved=a.element_size() * (m * k + k * n + m * n), flops=2 * m * n * k,
        a=_described(a, [tile.m, tile.k], a_upright), b=_described(b, [tile.k, tile.n], b_flat),
        c=TensorDescriptor(c, [m, n], [n, 1], [tile.m, width]), m=m, n=n, k=k,
        BM=tile.m, BN=tile.n, BK=tile.k, GROUP=tile.group, HALVES=tile.halves,
        A_UPRIGHT=a_upright, B_UPRIGHT=not b_flat, FLATTEN=True, num_stages=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


def _launch_pointers(a: Tensor, b: Tensor, c: Tensor, tile: Tile) -> None:
    (m, k), n = a.shape, b.shape[1]
    if tile.m * tile.n > 128 * 128:
        tile = Tile(128, 128, tile.k, stages=3, warps=8)
    _through_pointers.launch(
        (triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n),),
        needs={"a": extent(a), "b": extent(b), "c": m * n},
        bytes_moved=a.element_size() * (m * k + k * n + m * n), flops=2 * m * n * k,
        a=a, b=b, c=c, m=m, n=n, k=k,
        a_row=a.stride(0), a_column=a.stride(1), b_row=b.stride(0), b_column=b.stride(1),
        BM=tile.m, BN=tile.n, BK=tile.k, GROUP=tile.group, WIDE=not a.is_cuda,
        num_stages=tile.stages, num_warps=tile.warps,
    )  # fmt: skip


def dgrad(*, dy: Tensor, w: Tensor) -> Tensor:
    """dx (M, K) from dy (M, N) and w (N, K)."""
    _matrices("gemm.dgrad", dy=dy, w=w)
    wants("gemm.dgrad", "w", w.shape[0] == dy.shape[1], f"({dy.shape[1]}, K)", tuple(w.shape))
    return product(a=dy, b=w)


def wgrad(*, dy: Tensor, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """dw (N, K) from dy (M, N) and x (M, K); in ``dtype`` when parts of it are still to be added."""
    _matrices("gemm.wgrad", dy=dy, x=x)
    wants("gemm.wgrad", "x", x.shape[0] == dy.shape[0], f"({dy.shape[0]}, K)", tuple(x.shape))
    return product(a=dy.T, b=x, dtype=dtype)


def _matrices(operation: str, **tensors: Tensor) -> None:
    floating(operation, **tensors)
    for name, tensor in tensors.items():
        wants(operation, name, tensor.ndim == 2, "a matrix", tuple(tensor.shape))


class _Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return product(a=x, b=w.T)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        dx = dgrad(dy=dy, w=w) if ctx.needs_input_grad[0] else None
        dw = wgrad(dy=dy, x=x) if ctx.needs_input_grad[1] else None
        return dx, dw


def gemm(*, x: Tensor, w: Tensor) -> Tensor:
    """y (..., N) = x (..., K) @ w (N, K)^T."""
    floating("gemm", x=x, w=w)
    wants("gemm", "w", w.ndim == 2, "(N, K)", tuple(w.shape))
    wants("gemm", "x", x.ndim >= 1 and x.shape[-1] == w.shape[1], f"(..., {w.shape[-1]})", tuple(x.shape))
    if takes_torch("gemm", x):
        return reference(x=x, w=w)
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return _Gemm.apply(rows, w).view(*x.shape[:-1], w.shape[0])


def reference(*, x: Tensor, w: Tensor) -> Tensor:
    return x @ w.T


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    x = torch.randn(m, k, generator=draw, device=draw.device)
    w = torch.randn(n, k, generator=draw, device=draw.device) / k**0.5
    return {"x": x.to(dtype), "w": w.to(dtype)}


OPERATOR = Operator(
    name="gemm", chain=4, family="reduction", contract="K-MATMUL-001", function=gemm, reference=reference,
    inputs=_inputs, rows={"x": 0}, differentiable=("x", "w"),
    sizes=({"m": 5, "n": 24, "k": 40}, {"m": 33, "n": 17, "k": 70}),
    large=({"m": 256, "n": 4096, "k": 4096}, {"m": 200, "n": 11008, "k": 4096}),
)  # fmt: skip
