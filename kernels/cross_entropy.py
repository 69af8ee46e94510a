"""The log probability of chosen tokens, and the mean cross-entropy with its gradient in the same pass.

    lse = log sum_v exp(x[v]),   logprob = x[t] - lse,   loss = mean over rows of -logprob
    d logprob / dx[v] = [v == t] - exp(x[v] - lse)

Enters: logits (rows, V) in fp32, bf16 or fp16 and targets (rows). Leaves: fp32 log probabilities, or one fp32 loss.
One program a row walks the vocabulary from left to right in fixed blocks, keeping a running maximum and sum: the
reduction is locked, whatever the number of rows. Rows at ``ignore_index`` give 0 and a zero gradient. A target outside
the vocabulary gives NaN in its row: nothing is read out of bounds and no host waits to find out.

``cross_entropy`` writes the gradient of the logits while the row is still in the cache; its backward only scales that
by the upstream gradient, and a program that finds a one there returns at once. So it can be used for one backward. In
fp16 a gradient must meet the loss scale before it is rounded: there the backward makes it, from the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Arguments, Operator, Schedule, Sizes

IGNORE = -100
BLOCK, WARPS = 2048, 16
LONG, LONG_BLOCK, LONG_WARPS = 65_536, 16_384, 32
"""A longer vocabulary is read twice only from the cache if few rows are in flight, so that each takes a whole
multiprocessor."""
_ROWS = 4096
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
def _log_sum(x, vocabulary, BLOCK: tl.constexpr, KEEP: tl.constexpr):
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
def _chosen(x, target, vocabulary, lse, ignore):
    """The log probability of the target; 0 where it is ignored and NaN where there is no such token."""
    valid = (target >= 0) & (target < vocabulary)
    logit = tl.load(x + target, mask=valid, other=float("nan")).to(tl.float32)
    return tl.where(target == ignore, 0.0, (logit * _LOG2E - lse) * _LN2)


@kernel("logprob.forward")
@triton.jit
def _forward(logits, targets, logprob, lses, vocabulary, stride, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * stride
    lse = _log_sum(x, vocabulary, BLOCK, "evict_first")
    tl.store(lses + row, lse)
    tl.store(logprob + row, _chosen(x, tl.load(targets + row), vocabulary, lse, ignore))


@triton.jit
def _slope(values, lse, by):
    return (tl.exp2(values.to(tl.float32) * _LOG2E - lse) * by).to(values.dtype)


@triton.jit
def _gradient(x, dx, target, vocabulary, lse, by, BLOCK: tl.constexpr):
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
def _clear(dx, vocabulary, BLOCK: tl.constexpr):
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
        _clear(dx, vocabulary, BLOCK)
    else:
        by = -tl.load(grad + row)
        by = tl.where((target >= 0) & (target < vocabulary), by, float("nan"))
        _gradient(logits + row * stride, dx, target, vocabulary, tl.load(lses + row), by, BLOCK)


@kernel("cross_entropy.both")
@triton.jit
def _both(logits, targets, losses, dlogits, share, vocabulary, stride, ignore, BLOCK: tl.constexpr):
    """Loss and gradient of one row: read once from memory, and again from the cache."""
    row = tl.program_id(0).to(tl.int64)
    x, dx = logits + row * stride, dlogits + row * vocabulary
    target = tl.load(targets + row)
    if target == ignore:
        tl.store(losses + row, 0.0)
        _clear(dx, vocabulary, BLOCK)
    else:
        lse = _log_sum(x, vocabulary, BLOCK, "evict_last")
        tl.store(losses + row, -_chosen(x, target, vocabulary, lse, ignore))
        by = tl.where((target >= 0) & (target < vocabulary), tl.load(share), float("nan"))
        _gradient(x, dx, target, vocabulary, lse, by, BLOCK)


@kernel("cross_entropy.total")
@triton.jit(do_not_specialize=["rows"])
def _total(losses, share, loss, rows, BLOCK: tl.constexpr):
    """The sum of all rows in their order, so that ignored rows at the end change nothing."""
    at = tl.arange(0, BLOCK)
    total = 0.0
    for first in tl.range(0, rows, BLOCK):
        total += tl.sum(tl.load(losses + first + at, mask=first + at < rows, other=0.0), axis=0)
    tl.store(loss, total * tl.load(share))


@kernel("cross_entropy.scale")
@triton.jit(do_not_specialize=["count"])
def _scale(dlogits, upstream, count, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    by = tl.load(upstream).to(tl.float32)
    if by != 1.0:
        for turn in range(ROUNDS):
            at = (tl.program_id(0).to(tl.int64) * ROUNDS + turn) * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(dlogits + at, mask=at < count, other=0.0).to(tl.float32)
            tl.store(dlogits + at, (values * by).to(dlogits.dtype.element_ty), mask=at < count)


def _cut(vocabulary: int, twice: bool = False) -> dict[str, int]:
    """Blocks and warps; by the vocabulary and whether rows are read twice, never by the number of rows."""
    if twice and vocabulary > LONG:
        return {"BLOCK": LONG_BLOCK, "num_warps": LONG_WARPS}
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
                stride=logits.stride(0), ignore=ignore, **_cut(vocabulary),
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
                vocabulary=vocabulary, stride=logits.stride(0), ignore=ctx.ignore, **_cut(vocabulary),
            )  # fmt: skip
        return dlogits, None, None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore: int, mean: bool) -> Tensor:
        rows, vocabulary = logits.shape
        losses = logits.new_empty(rows, dtype=torch.float32)
        dlogits = logits.new_empty((rows, vocabulary))
        loss = logits.new_empty((), dtype=torch.float32)
        share = _share(target, ignore, mean)
        if rows:
            _both.launch(
                (rows,), needs={"targets": rows, "dlogits": rows * vocabulary},
                bytes_moved=2 * logits.element_size() * rows * vocabulary, flops=8 * rows * vocabulary,
                logits=logits, targets=target, losses=losses, dlogits=dlogits, share=share, vocabulary=vocabulary,
                stride=logits.stride(0), ignore=ignore, **_cut(vocabulary, twice=True),
            )  # fmt: skip
        _total.launch((1,), losses=losses, share=share, loss=loss, rows=rows, BLOCK=_ROWS, num_warps=8)
        ctx.dlogits = dlogits
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.dlogits is None:
            raise RuntimeError("cross_entropy keeps its gradient for one backward; call it again for a second one")
        dlogits, ctx.dlogits = ctx.dlogits, None
        if dlogits.numel():
            block, rounds = 4096, 16
            _scale.launch(
                (triton.cdiv(dlogits.numel(), block * rounds),), bytes_moved=4,
                dlogits=dlogits, upstream=upstream, count=dlogits.numel(), BLOCK=block, ROUNDS=rounds, num_warps=8,
            )  # fmt: skip
        return dlogits, None, None, None


def logprob(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE) -> Tensor:
    """fp32 log probabilities (rows) of target (rows) under logits (rows, V)."""
    logits = _checked("logprob", logits, target)
    if takes_torch("logprob", logits):
        return reference(logits=logits, target=target, ignore_index=ignore_index)
    return _LogProb.apply(logits, target.contiguous(), ignore_index)


def cross_entropy(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE, reduction: str = "mean") -> Tensor:
    """The fp32 mean (or sum) of -log p over rows that are not ignored; its backward can run once."""
    logits = _checked("cross_entropy", logits, target)
    wants("cross_entropy", "reduction", reduction in ("mean", "sum"), "'mean' or 'sum'", reduction)
    if takes_torch("cross_entropy", logits):
        return F.cross_entropy(logits.float(), target, ignore_index=ignore_index, reduction=reduction)
    mean, target = reduction == "mean", target.contiguous()
    if logits.dtype == torch.float16 or not (logits.requires_grad and torch.is_grad_enabled()):
        chosen = logprob(logits=logits, target=target, ignore_index=ignore_index)
        return _Total.apply(chosen, _share(target, ignore_index, mean))
    return _CrossEntropy.apply(logits, target, ignore_index, mean)


def _share(target: Tensor, ignore: int, mean: bool) -> Tensor:
    """What each row counts, on the device: one over the rows that are not ignored, or one."""
    counted = (target != ignore).sum(dtype=torch.float32)
    return counted.reciprocal() if mean else torch.ones_like(counted)


class _Total(torch.autograd.Function):
    """-share times the sum of log probabilities, in their order."""

    @staticmethod
    def forward(ctx: Any, chosen: Tensor, share: Tensor) -> Tensor:
        loss = torch.empty_like(share)
        _total.launch((1,), losses=-chosen, share=share, loss=loss, rows=len(chosen), BLOCK=_ROWS, num_warps=8)
        ctx.save_for_backward(share)
        ctx.rows = len(chosen)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (share,) = ctx.saved_tensors
        return (-upstream * share).expand(ctx.rows), None


def _checked(operation: str, logits: Tensor, target: Tensor) -> Tensor:
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


def loss_reference(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE) -> Tensor:
    return F.cross_entropy(logits.float(), target, ignore_index=ignore_index)


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    rows, vocabulary = sizes["rows"], sizes["vocabulary"]
    logits = 2 * torch.randn(rows, vocabulary, generator=draw, device=draw.device)
    target = torch.randint(0, vocabulary, (rows,), generator=draw, device=draw.device)
    target[rows // 2 :: 7] = IGNORE
    return {"logits": logits.to(dtype), "target": target}


def _padded(given: Arguments) -> Arguments:
    """The same rows and ignored ones behind them."""
    logits, target = given["logits"].detach(), given["target"]
    more = torch.cat([logits, logits.flip(0)]), torch.cat([target, torch.full_like(target, IGNORE)])
    return {"logits": more[0].requires_grad_(), "target": more[1]}


def _before_ignored_rows(operation: Callable[..., Tensor], given: Arguments) -> tuple[Tensor, Tensor]:
    return operation(**given)[None], operation(**_padded(given))[None].detach()


def _gradient_before_ignored_rows(operation: Callable[..., Tensor], given: Arguments) -> tuple[Tensor, Tensor]:
    plain = {**given, "logits": given["logits"].detach().clone().requires_grad_()}
    both = [(each, operation(**each)) for each in (plain, _padded(given))]
    (was,), (now,) = (torch.autograd.grad(loss * 1.7, each["logits"]) for each, loss in both)
    return was, now[: len(was)]


OPERATORS = (
    Operator(
        name="logprob", chain=8, family="logprob", contract="K-XENT-001", function=logprob, reference=reference,
        inputs=_inputs, rows={"logits": 0, "target": 0}, differentiable=("logits",),
        sizes=({"rows": 5, "vocabulary": 50}, {"rows": 3, "vocabulary": 33_000}),
        large=({"rows": 2048, "vocabulary": 32_000}, {"rows": 1024, "vocabulary": 128_256}),
    ),
    Operator(
        name="cross_entropy", chain=9, family="logprob", contract="K-XENT-001", function=cross_entropy,
        reference=loss_reference, inputs=_inputs, rows={}, differentiable=("logits",),
        sizes=({"rows": 5, "vocabulary": 50},), large=({"rows": 2048, "vocabulary": 32_000},),
        schedules=(
            Schedule("T4", "ignored rows behind", _before_ignored_rows),
            Schedule("T4", "gradient, ignored rows behind", _gradient_before_ignored_rows),
        ),
    ),
)  # fmt: skip
