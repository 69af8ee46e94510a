"""The mean cross-entropy, with its gradient in the same pass.

    lse = log sum_v exp(x[v]),   loss = mean over rows of lse - x[t]
    d loss / dx[v] = (exp(x[v] - lse) - [v == t]) / rows

Enters: logits (rows, V) in fp32, bf16 or fp16 and targets (rows). Leaves: one fp32 loss, the mean or the sum
over rows that are not at ``ignore_index``. A row is walked by the functions of logprob.py, so its reduction is locked
as there, and what that file says of targets outside the vocabulary holds here.

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

from brickprof.kernels.logprob import IGNORE, at_target, checked, clear, cut, gradient, inputs, log_sum, logprob
from brickprof.operators.launch import kernel, takes_torch, wants
from brickprof.operators.operator import Arguments, Operator, Schedule

LONG, LONG_BLOCK, LONG_WARPS = 65_536, 16_384, 32
"""A longer vocabulary is read twice only from the cache if few rows are in flight, so that each takes a whole
multiprocessor."""
_ROWS = 4096


@kernel("cross_entropy.both")
@triton.jit
def _both(logits, targets, losses, dlogits, share, vocabulary, stride, ignore, BLOCK: tl.constexpr):
    """Loss and gradient of one row: read once from memory, and again from the cache."""
    row = tl.program_id(0).to(tl.int64)
    x, dx = logits + row * stride, dlogits + row * vocabulary
    target = tl.load(targets + row)
    if target == ignore:
        tl.store(losses + row, 0.0)
        clear(dx, vocabulary, BLOCK)
    else:
        lse = log_sum(x, vocabulary, BLOCK, "evict_last")
        tl.store(losses + row, -at_target(x, target, vocabulary, lse, ignore))
        by = tl.where((target >= 0) & (target < vocabulary), tl.load(share), float("nan"))
        gradient(x, dx, target, vocabulary, lse, by, BLOCK)


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


def _read_twice(vocabulary: int) -> dict[str, int]:
    """Blocks and warps."""
    return {"BLOCK": LONG_BLOCK, "num_warps": LONG_WARPS} if vocabulary > LONG else cut(vocabulary)


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
                stride=logits.stride(0), ignore=ignore, **_read_twice(vocabulary),
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


def cross_entropy(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE, reduction: str = "mean") -> Tensor:
    """The fp32 mean (or sum) of -log p over rows that are not ignored; its backward can run once."""
    logits = checked("cross_entropy", logits, target)
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


def reference(*, logits: Tensor, target: Tensor, ignore_index: int = IGNORE) -> Tensor:
    return F.cross_entropy(logits.float(), target, ignore_index=ignore_index)


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


OPERATOR = Operator(
    name="cross_entropy", chain=9, family="logprob", contract="K-XENT-001", function=cross_entropy,
    reference=reference, inputs=inputs, rows={}, differentiable=("logits",),
    sizes=({"rows": 5, "vocabulary": 50},), large=({"rows": 2048, "vocabulary": 32_000},),
    schedules=(
        Schedule("T4", "ignored rows behind", _before_ignored_rows),
        Schedule("T4", "gradient, ignored rows behind", _gradient_before_ignored_rows),
    ),
)  # fmt: skip
