"""y[i] = table[tokens[i]], and a gradient that is summed in one order.

    dtable[v] = sum over i with tokens[i] == v of dy[i], i rising

Enters: tokens of any shape and a table (V, H). Leaves: rows of the table's type. The backward sorts the tokens (stably,
so equal ones stay in their order) and gives each token of the vocabulary that occurs to one program, which adds its
rows one after another in fp32: no atomics, so every run has the same bits. A token outside the table raises on a host
and gives NaN rows on a device, where asking would mean waiting.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes


@kernel("embedding.forward")
@triton.jit(do_not_specialize=["vocabulary"])
def _gather(tokens, table, y, vocabulary, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = at < width
    token = tl.load(tokens + row).to(tl.int64)
    known = (token >= 0) & (token < vocabulary)
    values = tl.load(table + token * width + at, mask=inside & known, other=0.0)
    values = tl.where(known, values.to(tl.float32), float("nan")).to(y.dtype.element_ty)
    tl.store(y + row * width + at, values, mask=inside)


@kernel("embedding.backward")
@triton.jit(do_not_specialize=["count", "vocabulary"])
def _scatter(tokens, order, dy, dtable, count, vocabulary, width, WIDTH: tl.constexpr):
    """The program at the first of a run of equal tokens adds the whole run."""
    place = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + place).to(tl.int64)
    before = tl.load(tokens + place - 1, mask=place > 0, other=-1).to(tl.int64)
    if (token != before) & (token >= 0) & (token < vocabulary):
        at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = at < width
        total = tl.zeros((WIDTH,), dtype=tl.float32)
        here = place
        same = True
        while same:
            row = tl.load(order + here).to(tl.int64)
            total += tl.load(dy + row * width + at, mask=inside, other=0.0).to(tl.float32)
            here += 1
            same = (here < count) & (tl.load(tokens + here, mask=here < count, other=-1).to(tl.int64) == token)
        tl.store(dtable + token * width + at, total.to(dtable.dtype.element_ty), mask=inside)


def _columns(width: int) -> int:
    return min(1024, triton.next_power_of_2(max(width, 1)))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        vocabulary, width = table.shape
        y = table.new_empty((tokens.numel(), width))
        if y.numel():
            block = _columns(width)
            _gather.launch(
                (tokens.numel(), triton.cdiv(width, block)), needs={"y": y.numel(), "table": table.numel()},
                bytes_moved=2 * y.numel() * y.element_size(),
                tokens=tokens, table=table, y=y, vocabulary=vocabulary, width=width, WIDTH=block, num_warps=4,
            )  # fmt: skip
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor]:
        (tokens,) = ctx.saved_tensors
        vocabulary, width = ctx.shape
        dtable = dy.new_zeros((vocabulary, width))
        if dy.numel():
            ordered, order = torch.sort(tokens, stable=True)
            block = _columns(width)
            _scatter.launch(
                (tokens.numel(), triton.cdiv(width, block)), needs={"dtable": vocabulary * width},
                bytes_moved=2 * dy.numel() * dy.element_size(),
                tokens=ordered, order=order, dy=dy.contiguous(), dtable=dtable, count=tokens.numel(),
                vocabulary=vocabulary, width=width, WIDTH=block, num_warps=4,
            )  # fmt: skip
        return None, dtable


def embedding(*, tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of table (V, H) at tokens (...)."""
    floating("embedding", table=table)
    wants("embedding", "table", table.ndim == 2, "(V, H)", tuple(table.shape))
    wants("embedding", "tokens", tokens.dtype in (torch.int64, torch.int32), "int64 or int32", tokens.dtype)
    wants("embedding", "tokens", tokens.device == table.device, f"on {table.device}", tokens.device)
    if takes_torch("embedding", table):
        return reference(tokens=tokens, table=table)
    flat = _Embedding.apply(tokens.reshape(-1).contiguous(), table.contiguous())
    return flat.view(*tokens.shape, table.shape[1])


def reference(*, tokens: Tensor, table: Tensor) -> Tensor:
    return torch.nn.functional.embedding(tokens.long(), table)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    table = torch.randn(sizes["vocabulary"], sizes["width"], generator=draw, device=draw.device)
    tokens = torch.randint(0, sizes["vocabulary"], (sizes["rows"],), generator=draw, device=draw.device)
    return {"tokens": tokens, "table": table.to(dtype)}


OPERATOR = Operator(
    name="embedding", chain=0, family="elementwise", contract="K-EMBED-001", function=embedding, reference=reference,
    inputs=_inputs, rows={"tokens": 0}, differentiable=("table",),
    sizes=({"rows": 9, "vocabulary": 6, "width": 20},), large=({"rows": 8192, "vocabulary": 32_000, "width": 4096},),
)  # fmt: skip
