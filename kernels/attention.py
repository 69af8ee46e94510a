"""Causal attention, with as many query heads to a key head as one likes.

    s[i, j] = q[i] . k[j] / sqrt(D)  for j <= i + (T - S),     p = softmax over j,     o[i] = sum_j p[i, j] v[j]
    dv = p^T do,   dp = do v^T,   ds = p (dp - sum_d do o),   dq = ds k / sqrt(D),   dk = ds^T q / sqrt(D)

Enters: q (B, H, S, D), k and v (B, G, T, D) with G a divisor of H, S at most T, D of 16 to 256 and a power of two.
The last query stands at the last key, so one operation serves a whole prompt (S = T), a chunk of one (S < T, after the
keys of the chunks before it) and a single new token (S = 1) with a cache. Leaves: o, and the log-sum-exp of each row.

Keys are walked from the first on, in blocks of one size, with a running maximum and sum. A block that a row may not see
adds exact zeros, so a row's bits do not depend on which chunk it came in. The backward makes dk and dv in one kernel,
dq in another, each program adding in a fixed order: no atomics, the same bits every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from brickprof.operators.launch import floating, kernel, takes_torch, wants
from brickprof.operators.operator import Arguments, Operator, Schedule, Sizes

KEYS = 64
"""The block of keys: the order of every sum over keys hangs on it, so it is one for all sizes of a type."""
_LOG2E = 1.4426950408889634


@triton.jit
def _tile(x, head, first, ROWS: tl.constexpr, D: tl.constexpr):
    return tl.reshape(x.load([head, first, 0]), (ROWS, D))


@triton.jit
def _attend(
    total, weight, most, q, k, v, head, begin, end, limit, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Blocks of keys from ``begin`` to ``end``; ``limit``: the last key that each row may see."""
    for first in tl.range(begin, end, BN):
        keys = _tile(k, head, first, BN, D)
        if WIDE:
            keys = keys.to(tl.float32)
        score = tl.dot(q, keys.T, input_precision="ieee")
        if MASKED:
            score = tl.where(first + tl.arange(0, BN)[None, :] <= limit[:, None], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1) * scale)
        chance = tl.exp2(score * scale - higher[:, None])
        fade = tl.exp2(most - higher)
        weight = weight * fade + tl.sum(chance, 1)
        total = total * fade[:, None]
        values = _tile(v, head, first, BN, D)
        if WIDE:
            total = tl.dot(chance, values.to(tl.float32), total, input_precision="ieee")
        else:
            total = tl.dot(chance.to(values.dtype), values, total, input_precision="ieee")
        most = higher
    return total, weight, most


@kernel("attention.forward")
@triton.jit(do_not_specialize=["heads", "groups", "s", "t"])
def _forward(
    q, k, v, o, lse, heads, groups, s, t, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows first
    head = tl.program_id(1)
    behind = (head // heads) * groups + (head % heads) // (heads // groups)
    first = block * BM
    at = first + tl.arange(0, BM)
    limit = at + (t - s)
    queries = _tile(q, head, first, BM, D)
    if WIDE:
        queries = queries.to(tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    weight = tl.zeros((BM,), dtype=tl.float32)
    most = tl.full((BM,), float("-inf"), dtype=tl.float32)
    clear = (t - s + first + 1) // BN * BN
    end = tl.minimum(t - s + first + BM, t)
    total, weight, most = _attend(
        total, weight, most, queries, k, v, behind, 0, clear, limit, scale, BM, BN, D, False, WIDE
    )
    total, weight, most = _attend(
        total, weight, most, queries, k, v, behind, clear, end, limit, scale, BM, BN, D, True, WIDE
    )
    o.store([head, first, 0], tl.reshape((total / weight[:, None]).to(o.dtype), (1, BM, D)))
    tl.store(lse + head.to(tl.int64) * s + at, most + tl.log2(weight), mask=at < s)


@kernel("attention.delta")
@triton.jit(do_not_specialize=["rows"])
def _delta(o, do, delta, rows, BM: tl.constexpr, D: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    place = at[:, None] * D + tl.arange(0, D)[None, :]
    inside = at[:, None] < rows
    out = tl.load(o + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(do + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + at, tl.sum(out * grad, 1), mask=at < rows)


@triton.jit
def _to_keys(
    dk, dv, keys, values, q, do, lse, delta, head, begin, end, at, s, ahead, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What the queries from ``begin`` to ``end`` of one head give to a block of keys and values."""
    for first in tl.range(begin, end, BM):
        row = first + tl.arange(0, BM)
        queries, grads = _tile(q, head, first, BM, D), _tile(do, head, first, BM, D)
        if WIDE:
            queries, grads = queries.to(tl.float32), grads.to(tl.float32)
        place = head.to(tl.int64) * s + row
        high = tl.load(lse + place, mask=row < s, other=float("inf"))
        dots = tl.load(delta + place, mask=row < s, other=0.0)
        score = tl.dot(keys, queries.T, input_precision="ieee")
        chance = tl.exp2(score * scale - high[None, :])
        if MASKED:
            chance = tl.where(at[:, None] <= row[None, :] + ahead, chance, 0.0)
        dv = tl.dot(chance.to(grads.dtype), grads, dv, input_precision="ieee")
        dp = tl.dot(values, grads.T, input_precision="ieee")
        ds = chance * (dp - dots[None, :])
        dk = tl.dot(ds.to(queries.dtype), queries, dk, input_precision="ieee")
    return dk, dv


@kernel("attention.dkdv")
@triton.jit(do_not_specialize=["heads", "groups", "s", "t"])
def _dkdv(
    q, k, v, do, dk, dv, lse, delta, heads, groups, s, t, scale, shrink,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0) * BN
    behind = tl.program_id(1)
    each = heads // groups
    at = start + tl.arange(0, BN)
    ahead = t - s
    keys, values = _tile(k, behind, start, BN, D), _tile(v, behind, start, BN, D)
    if WIDE:
        keys, values = keys.to(tl.float32), values.to(tl.float32)
    sum_k = tl.zeros((BN, D), dtype=tl.float32)
    sum_v = tl.zeros((BN, D), dtype=tl.float32)
    begin = tl.maximum(start - ahead, 0) // BM * BM
    clear = tl.minimum((tl.maximum(start + BN - 1 - ahead, 0) + BM - 1) // BM * BM, (s + BM - 1) // BM * BM)
    for member in range(each):
        head = (behind // groups) * heads + (behind % groups) * each + member
        sum_k, sum_v = _to_keys(
            sum_k, sum_v, keys, values, q, do, lse, delta, head, begin, clear, at, s, ahead, scale,
            BM, BN, D, True, WIDE,
        )  # fmt: skip
        sum_k, sum_v = _to_keys(
            sum_k, sum_v, keys, values, q, do, lse, delta, head, clear, s, at, s, ahead, scale,
            BM, BN, D, False, WIDE,
        )  # fmt: skip
    dk.store([behind, start, 0], tl.reshape((sum_k * shrink).to(dk.dtype), (1, BN, D)))
    dv.store([behind, start, 0], tl.reshape(sum_v.to(dv.dtype), (1, BN, D)))


@triton.jit
def _to_queries(
    dq, queries, grads, k, v, high, dots, head, begin, end, limit, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    for first in tl.range(begin, end, BN):
        keys, values = _tile(k, head, first, BN, D), _tile(v, head, first, BN, D)
        if WIDE:
            keys, values = keys.to(tl.float32), values.to(tl.float32)
        score = tl.dot(queries, keys.T, input_precision="ieee")
        chance = tl.exp2(score * scale - high[:, None])
        if MASKED:
            chance = tl.where(first + tl.arange(0, BN)[None, :] <= limit[:, None], chance, 0.0)
        dp = tl.dot(grads, values.T, input_precision="ieee")
        ds = chance * (dp - dots[:, None])
        dq = tl.dot(ds.to(keys.dtype), keys, dq, input_precision="ieee")
    return dq


@kernel("attention.dq")
@triton.jit(do_not_specialize=["heads", "groups", "s", "t"])
def _dq(
    q, k, v, do, dq, lse, delta, heads, groups, s, t, scale, shrink,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    behind = (head // heads) * groups + (head % heads) // (heads // groups)
    first = block * BM
    at = first + tl.arange(0, BM)
    limit = at + (t - s)
    queries, grads = _tile(q, head, first, BM, D), _tile(do, head, first, BM, D)
    if WIDE:
        queries, grads = queries.to(tl.float32), grads.to(tl.float32)
    place = head.to(tl.int64) * s + at
    high = tl.load(lse + place, mask=at < s, other=float("inf"))
    dots = tl.load(delta + place, mask=at < s, other=0.0)
    total = tl.zeros((BM, D), dtype=tl.float32)
    clear = (t - s + first + 1) // BN * BN
    end = tl.minimum(t - s + first + BM, t)
    total = _to_queries(total, queries, grads, k, v, high, dots, behind, 0, clear, limit, scale, BM, BN, D, False, WIDE)
    total = _to_queries(
        total, queries, grads, k, v, high, dots, behind, clear, end, limit, scale, BM, BN, D, True, WIDE
    )
    dq.store([head, first, 0], tl.reshape((total * shrink).to(dq.dtype), (1, BM, D)))


def _blocks(d: int, dtype: torch.dtype, on_device: bool) -> dict[str, dict[str, Any]]:
    """Rows of queries and keys a program, by kernel. Keys in the forward by type and D only."""
    if not on_device:
        return {name: {"BM": 16, "BN": 16} for name in ("forward", "dkdv", "dq")}
    if dtype == torch.float32 or d > 128:
        small = {"BM": 32, "BN": 32, "num_warps": 4, "num_stages": 1}
        return dict.fromkeys(("forward", "dkdv", "dq"), small)
    return {
        "forward": {"BM": 64, "BN": KEYS, "num_warps": 4, "num_stages": 3},
        "dkdv": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2},
        "dq": {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3},
    }


def _aligned(x: Tensor) -> Tensor:
    """x as a descriptor takes it: without gaps, at a multiple of 16 bytes."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _heads(x: Tensor, rows: int) -> Any:
    """x (B, H, S, D) as a descriptor of (B H, S, D): what lies past S reads as zero and is not written."""
    b, h, s, d = x.shape
    return TensorDescriptor(x, [b * h, s, d], [s * d, d, 1], [1, rows, d])


def _common(q: Tensor, k: Tensor) -> dict[str, Any]:
    (_, h, s, d), (_, g, t, _) = q.shape, k.shape
    return {"heads": h, "groups": g, "s": s, "t": t, "scale": _LOG2E / math.sqrt(d), "D": d, "WIDE": not q.is_cuda}


def _work(q: Tensor, k: Tensor, products: int) -> int:
    (b, h, s, d), t = q.shape, k.shape[2]
    return products * 2 * b * h * d * (s * (t - s) + s * (s + 1) // 2)


def forward(*, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """o and the base-2 log-sum-exp of each row."""
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    b, h, s, d = q.shape
    o, lse = torch.empty_like(q), q.new_empty((b, h, s), dtype=torch.float32)
    if q.numel():
        blocks = _blocks(d, q.dtype, q.is_cuda)["forward"]
        bm, bn = blocks["BM"], blocks["BN"]
        _forward.launch(
            (triton.cdiv(s, bm), b * h), flops=_work(q, k, 2),
            bytes_moved=q.element_size() * (2 * q.numel() + 2 * k.numel()),
            q=_heads(q, bm), k=_heads(k, bn), v=_heads(v, bn), o=_heads(o, bm), lse=lse, **_common(q, k), **blocks,
        )  # fmt: skip
    return o, lse


def backward(*, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv."""
    q, k, v, do = _aligned(q), _aligned(k), _aligned(v), _aligned(do)
    (b, h, s, d), (_, g, t, _) = q.shape, k.shape
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if not q.numel():
        return dq, dk.zero_(), dv.zero_()
    delta = torch.empty_like(lse)
    rows = b * h * s
    _delta.launch(
        (triton.cdiv(rows, 64),), needs={"o": rows * d, "do": rows * d, "delta": rows},
        bytes_moved=2 * q.element_size() * rows * d, o=o, do=do, delta=delta, rows=rows, BM=64, D=d, num_warps=4,
    )  # fmt: skip
    common = _common(q, k) | {"lse": lse, "delta": delta, "shrink": 1 / math.sqrt(d)}
    moved = q.element_size() * (3 * q.numel() + 4 * k.numel())
    blocks = _blocks(d, q.dtype, q.is_cuda)
    bm, bn = blocks["dkdv"]["BM"], blocks["dkdv"]["BN"]
    _dkdv.launch(
        (triton.cdiv(t, bn), b * g), bytes_moved=moved, flops=_work(q, k, 4),
        q=_heads(q, bm), k=_heads(k, bn), v=_heads(v, bn), do=_heads(do, bm), dk=_heads(dk, bn), dv=_heads(dv, bn),
        **common, **blocks["dkdv"],
    )  # fmt: skip
    bm, bn = blocks["dq"]["BM"], blocks["dq"]["BN"]
    _dq.launch(
        (triton.cdiv(s, bm), b * h), bytes_moved=moved, flops=_work(q, k, 3),
        q=_heads(q, bm), k=_heads(k, bn), v=_heads(v, bn), do=_heads(do, bm), dq=_heads(dq, bm),
        **common, **blocks["dq"],
    )  # fmt: skip
    return dq, dk, dv


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, lse = forward(q=q, k=k, v=v)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, o, lse = ctx.saved_tensors
        return backward(q=q, k=k, v=v, o=o, lse=lse, do=do)


def attention(*, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal; the last query stands at the last key."""
    _checked(q, k, v)
    return reference(q=q, k=k, v=v) if takes_torch("attention", q) else _Attention.apply(q, k, v)


def _checked(q: Tensor, k: Tensor, v: Tensor) -> None:
    floating("attention", q=q, k=k, v=v)
    wants("attention", "q", q.ndim == 4, "(B, H, S, D)", tuple(q.shape))
    b, h, s, d = q.shape
    wants("attention", "q", d in (16, 32, 64, 128, 256), "D of 16, 32, 64, 128 or 256", d)
    wants("attention", "k", k.ndim == 4 and k.shape[0] == b and k.shape[3] == d, f"({b}, G, T, {d})", tuple(k.shape))
    wants("attention", "k", k.shape[1] > 0 and h % k.shape[1] == 0, f"with a divisor of {h} heads", k.shape[1])
    wants("attention", "k", k.shape[2] >= s, f"at least {s} keys, one for each query", k.shape[2])
    wants("attention", "v", v.shape == k.shape, str(tuple(k.shape)), tuple(v.shape))


def reference(*, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s, t = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    seen = torch.ones(s, t, dtype=torch.bool, device=q.device).tril(t - s)
    score = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.softmax(score.masked_fill(~seen, float("-inf")), dim=-1) @ v


def _chunked(operation: Callable[..., Tensor], given: Arguments, chunk: int) -> Tensor:
    q, k, v = given["q"], given["k"], given["v"]
    ahead = k.shape[2] - q.shape[2]
    return torch.cat(
        [
            operation(q=q[:, :, i : i + chunk], k=k[:, :, : ahead + i + chunk], v=v[:, :, : ahead + i + chunk])
            for i in range(0, q.shape[2], chunk)
        ],
        dim=2,
    )


def _in_chunks(operation: Callable[..., Tensor], given: Arguments) -> tuple[Tensor, Tensor]:
    return operation(**given), _chunked(operation, given, max(1, given["q"].shape[2] // 3))


def _token_by_token(operation: Callable[..., Tensor], given: Arguments) -> tuple[Tensor, Tensor]:
    """The last few tokens one at a time, with the cache of all before them."""
    whole, s = operation(**given), given["q"].shape[2]
    last = {**given, "q": given["q"][:, :, -min(s, 4) :]}
    return whole[:, :, -min(s, 4) :], _chunked(operation, last, 1)


def _behind_a_prefix(operation: Callable[..., Tensor], given: Arguments) -> tuple[Tensor, Tensor]:
    """The second half of the prompt behind the cached keys of the first."""
    whole, half = operation(**given), given["q"].shape[2] // 2
    return whole[:, :, half:], operation(**{**given, "q": given["q"][:, :, half:]})


def _lse_in_chunks(operation: Callable[..., Tensor], given: Arguments) -> tuple[Tensor, Tensor]:
    """What a cache hands on besides keys and values: the log-sum-exp of each row."""
    if operation is not attention:
        raise TypeError("it gives no log-sum-exp")
    return forward(**given)[1], _chunked(lambda **part: forward(**part)[1], given, max(1, given["q"].shape[2] // 3))


def _inputs(sizes: Sizes, dtype: torch.dtype, draw: torch.Generator) -> dict[str, Tensor]:
    b, s, d = sizes["batch"], sizes["length"], sizes["channels"]
    shapes = ((b, sizes["heads"], s, d), (b, sizes["groups"], s, d), (b, sizes["groups"], s, d))
    return {
        name: torch.randn(shape, generator=draw, device=draw.device).to(dtype)
        for name, shape in zip("qkv", shapes, strict=True)
    }


OPERATOR = Operator(
    name="attention", chain=3, family="attention", contract="K-ATTENTION-001", function=attention, reference=reference,
    inputs=_inputs, rows={"q": 0, "k": 0, "v": 0}, differentiable=("q", "k", "v"),
    sizes=({"batch": 3, "heads": 4, "groups": 2, "length": 21, "channels": 16},),
    large=(
        {"batch": 2, "heads": 8, "groups": 8, "length": 1024, "channels": 128},
        {"batch": 3, "heads": 8, "groups": 2, "length": 777, "channels": 64},
    ),
    schedules=(
        Schedule("T5", "prompt in chunks", _in_chunks),
        Schedule("T5", "token by token", _token_by_token),
        Schedule("T5", "log-sum-exp in chunks", _lse_in_chunks),
        Schedule("T7", "behind a cached prefix", _behind_a_prefix),
    ),
)  # fmt: skip
