"""The log probability of chosen tokens.

    lse = log sum_v exp(x[v]),   logprob = x[t] - lse
    d logprob / dx[v] = [v == t] - exp(x[v] - lse)

Enters: logits (rows, V) in fp32, bf16 or fp16 and targets (rows). Leaves: fp32 log probabilities (rows). Rows at
``ignore_index`` give 0 and a zero gradient. A target outside the vocabulary gives NaN in its row: nothing is read out
of bounds and no host waits to find out.

One program a row walks the vocabulary from left to right in fixed blocks, keeping a running maximum and sum: the
reduction is locked, whatever the number of rows. cross_entropy.py walks its rows with the same functions.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Operator, Sizes

IGNORE = -100
BLOCK, WARPS = 2048, 16
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _joined(most, total, values):
    """Each lane's running maximum (base 2) and sum, with one more value. Only one of the two shrinks, so that one
    exponential is enough; and no lane waits for another."""
    values = values.to(tl.float32) * _LOG2E
    gap = values - most
    shrunk = tl.exp2(-tl.abs(gap))
    rises = gap > 0.0
    total = total * tl.where(rises, shrunk, 1.0) + tl.where(rises, 1.0, shrunk)
    return tl.maximum(most, values), total


@triton.jit
def log_sum(x, vocabulary, BLOCK: tl.constexpr, KEEP: tl.constexpr) -> tl.tensor:
    """The base-2 log of sum exp of the row at ``x``: lanes first, from left to right, then all lanes together."""
    at = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), -3.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    whole = vocabulary // BLOCK * BLOCK
    for first in tl.range(0, whole, BLOCK):
        most, total = _joined(most, total, tl.load(x + first + at, eviction_policy=KEEP))
    if whole < vocabulary:
        last = tl.load(x + whole + at, mask=whole + at < vocabulary, other=float("-inf"))
        most, total = _joined(most, total, last)
    highest = tl.max(most, axis=0)
    return highest + tl.log2(tl.sum(total * tl.exp2(most - highest), axis=0))


@triton.jit
def at_target(x, target, vocabulary, lse, ignore) -> tl.tensor:
    """The log probability of the target; 0 where it is ignored and NaN where there is no such token."""
    valid = (target >= 0) & (target < vocabulary)
    logit = tl.load(x + target, mask=valid, other=float("nan")).to(tl.float32)
    return tl.where(target == ignore, 0.0, (logit * _LOG2E - lse) * _LN2)


@kernel("logprob.forward")
@triton.jit
def _forward(logits, targets, logprob, lses, vocabulary, stride, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * stride
    lse = log_sum(x, vocabulary, BLOCK, "evict_first")
    tl.store(lses + row, lse)
    tl.store(logprob + row, at_target(x, tl.load(targets + row), vocabulary, lse, ignore))


@triton.jit
def _slope(values, lse, by):
    return (tl.exp2(values.to(tl.float32) * _LOG2E - lse) * by).to(values.dtype)


@triton.jit
def gradient(x, dx, target, vocabulary, lse, by, BLOCK: tl.constexpr) -> None:
    """dx = by (softmax - [target]) of a row, from its end to its start: what was read last is still in the cache. The
    target is put right after the rest."""
    at = tl.arange(0, BLOCK)
    whole = vocabulary // BLOCK * BLOCK
    if whole < vocabulary:
        inside = whole + at < vocabulary
        tl.store(dx + whole + at, _slope(tl.load(x + whole + at, mask=inside, other=0.0), lse, by), mask=inside)
    for done in tl.range(0, whole, BLOCK):
        here = whole - BLOCK - done + at
        values = tl.load(x + here, eviction_policy="evict_first")
        tl.store(dx + here, _slope(values, lse, by), eviction_policy="evict_first")
    valid = (target >= 0) & (target < vocabulary)
    logit = tl.load(x + target, mask=valid, other=0.0).to(tl.float32)
    tl.debug_barrier()  # the value below replaces one that another thread has stored
    out = (tl.exp2(logit * _LOG2E - lse) - 1.0) * by
    tl.store(dx + target, out.to(dx.dtype.element_ty), mask=valid)


@triton.jit
def clear(dx, vocabulary, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    for first in tl.range(0, vocabulary, BLOCK):
        tl.store(dx + first + at, tl.zeros((BLOCK,), dx.dtype.element_ty), mask=first + at < vocabulary)


@kernel("logprob.backward")
@triton.jit
def _backward(grad, logits, targets, lses, dlogits, vocabulary, stride, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    dx = dlogits + row * vocabulary
    if target == ignore:
        clear(dx, vocabulary, BLOCK)
    else:
        by = -tl.load(grad + row)
        by = tl.where((target >= 0) & (target < vocabulary), by, float("nan"))
        gradient(logits + row * stride, dx, target, vocabulary, tl.load(lses + row), by, BLOCK)


def cut(vocabulary: int) -> dict[str, int]:
    """Blocks and warps; by the vocabulary, never by the number of rows."""
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    return {"BLOCK": block, "num_warps": max(1, min(WARPS, block // 128))}


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore: int) -> Tensor:
        rows, vocabulary = logits.shape
        logprob, lses = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
        if rows:
            _forward.launch(
                (rows,), needs={"targets": rows, "logprob": rows, "lses": rows},
                bytes_moved=logits.element_size() * rows * vocabulary, flops=4 * rows * vocabulary,
                logits=logits, targets=target, logprob=logprob, lses=lses, vocabulary=vocabulary,
                stride=logits.stride(0), ignore=ignore, **cut(vocabulary),
            )  # fmt: skip
        ctx.save_for_backward(logits, target, lses)
        ctx.ignore = ignore
        return logprob

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, target, lses = ctx.saved_tensors
        rows, vocabulary = logits.shape
        dlogits = logits.new_empty((rows, vocabulary))
        if rows:
            _backward.launch(
                (rows,), needs={"dlogits": rows * vocabulary},
                bytes_moved=2 * logits.element_size() * rows * vocabulary, flops=4 * rows * vocabulary,
                grad=grad.contiguous(), logits=logits, targets=target, lses=lses, dlogits=dlogits,
                vocabulary=vocabulary, stride=logits.stride(0), ignore=ctx.ignore, **cut(vocabulary),
            )  # fmt: skip
        return dlogits, None, None


def logprob(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE) -> Tensor:
    """fp32 log probabilities (rows) of target (rows) under logits (rows, V)."""
    logits = checked("logprob", logits, target)
    if takes_torch("logprob", logits):
        return reference(logits=logits, target=target, ignore_index=ignore_index)
    return _LogProb.apply(logits, target.contiguous(), ignore_index)


def checked(operation: str, logits: Tensor, target: Tensor) -> Tensor:
    floating(operation, logits=logits)
    wants(operation, "logits", logits.ndim == 2 and logits.shape[1] > 0, "(rows, V) with V > 0", tuple(logits.shape))
    wants(operation, "target", target.shape == logits.shape[:1], f"({len(logits)},)", tuple(target.shape))
    wants(operation, "target", target.dtype in (torch.int64, torch.int32), "int64 or int32", target.dtype)
    wants(operation, "target", target.device == logits.device, f"on {logits.device}", target.device)
    return logits if logits.stride(1) == 1 else logits.contiguous()


def reference(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE) -> Tensor:
    kept = target != ignore_index
    chosen = torch.log_softmax(logits.float(), dim=-1).gather(1, target.clamp(min=0)[:, None].long())[:, 0]
    return torch.where(kept, chosen, torch.zeros_like(chosen))


def inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    rows, vocabulary = sizes["rows"], sizes["vocabulary"]
    logits = 2 * torch.randn(rows, vocabulary, generator=draw, device=draw.device)
    target = torch.randint(0, vocabulary, (rows,), generator=draw, device=draw.device)
    target[rows // 2 :: 7] = IGNORE
    return {"logits": logits.to(dtype), "target": target}


OPERATOR = Operator(
    name="logprob", chain=8, family="logprob", contract="K-XENT-001", function=logprob, reference=reference,
    inputs=inputs, rows={"logits": 0, "target": 0}, differentiable=("logits",),
    sizes=({"rows": 5, "vocabulary": 50}, {"rows": 3, "vocabulary": 33_000}),
    large=({"rows": 2048, "vocabulary": 32_000}, {"rows": 1024, "vocabulary": 128_256}),
)  # fmt: skip
