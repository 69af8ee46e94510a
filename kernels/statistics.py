"""What the gradients of a whole model are like: one launch over all tensors, one pass over their bytes.

    nan, inf     how many
    absmax       the largest finite |x|
    l2           sqrt(sum x^2) over finite x, also at 1e35 and at 1e-30
    mean         sum x / numel over finite x
    zeros        the fraction that is exactly zero
    checksum     of all bits, and of where they stand

Enters: any number of tensors of one type on one device. Leaves: a table (tensors, 8) of float64 there; nobody waits.

A table of addresses on the device says where each tensor lies; it is made once and kept for as long as the addresses
stay. Each program takes a chunk of one tensor and walks it with all sums in registers. Squares are summed as they are:
only when a chunk turns out to hold something not finite, or so large or small that squares would leave fp32, is it
walked again, scaled by a power of two, to count and sum with care. The program that finishes the last chunk of a tensor
adds all its chunks in their order, in float64: who that is may change, what it adds does not.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.kernels._tables import Kept, Table, put, send, table
from brickprof.operators.launch import FLOATS, Bound, Kernel, kernel, takes_torch, wants
from brickprof.operators.likeness import likeness

_dtype = attrgetter("dtype")
_pointer, _contiguous = Tensor.data_ptr, Tensor.is_contiguous
_ALIGNED = bytes(range(0, 256, 16))
"""The lowest byte of an address that is a multiple of 16."""
NAMES = ("nan", "inf", "absmax", "l2", "mean", "zeros", "checksum", "numel")
BLOCK, ROUNDS = 1024, 64
"""Words of 32 bits that a program takes at a time, and how many times."""
WARPS = 8
_PRIME = 16777619
_KIND = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_LARGE = tl.constexpr(2.0**50)
_TINY = tl.constexpr(2.0**-50)


@triton.jit
def _word(base, at, left, KIND: tl.constexpr, WHOLE: tl.constexpr):
    """32 bits: one fp32, or two neighbours of 16 bits; what lies behind the end is zero."""
    if WHOLE:
        return tl.load(base.to(tl.pointer_type(tl.int32)) + at)
    if KIND == "fp32":
        return tl.load(base + at, mask=at < left, other=0)
    low = tl.load(base + 2 * at, mask=2 * at < left, other=0).to(tl.int32)
    high = tl.load(base + 2 * at + 1, mask=2 * at + 1 < left, other=0).to(tl.int32)
    return (low & 0xFFFF) | (high << 16)


@triton.jit
def _numbers(word, KIND: tl.constexpr):
    """The fp32 values in a word; one that holds a single value gives zero as the other."""
    if KIND == "bf16":
        return (word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True)
    elif KIND == "fp16":
        low, high = (word & 0xFFFF).to(tl.int16), (word >> 16).to(tl.int16)
        return low.to(tl.float16, bitcast=True).to(tl.float32), high.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return word.to(tl.float32, bitcast=True), tl.zeros_like(word).to(tl.float32, bitcast=True)


@triton.jit
def _stirred(h):
    """Every bit of 32 into every other, so that changes do not cancel where lanes are added."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _walk(
    base, left, KIND: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr, WHOLE: tl.constexpr,
    PRIME: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    square = tl.zeros((BLOCK,), tl.float32)
    nonzero = tl.zeros((BLOCK,), tl.int32)
    mixed = tl.zeros((BLOCK,), tl.uint32)
    for turn in tl.range(0, ROUNDS):
        word = _word(base, turn * BLOCK + at, left, KIND, WHOLE)
        mixed = (mixed ^ (mixed >> 15)) * PRIME + word.to(tl.uint32, bitcast=True)
        one, two = _numbers(word, KIND)
        most = tl.maximum(most, tl.abs(one))
        nonzero += (one != 0.0).to(tl.int32)
        total += one
        square += one * one
        if KIND != "fp32":
            most = tl.maximum(most, tl.abs(two))
            nonzero += (two != 0.0).to(tl.int32)
            total += two
            square += two * two
    mixed = tl.sum(_stirred(mixed + at.to(tl.uint32)).to(tl.int64), 0).to(tl.int32)
    return tl.max(most, 0), tl.sum(total, 0), tl.sum(square, 0), tl.sum(nonzero, 0), mixed


@triton.jit
def _bare(value):
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _highest(base, left, KIND: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """The largest finite size in a chunk."""
    at = tl.arange(0, BLOCK)
    top = tl.zeros((BLOCK,), tl.int32)
    for turn in tl.range(0, ROUNDS):
        one, two = _numbers(_word(base, turn * BLOCK + at, left, KIND, False), KIND)
        top = tl.maximum(top, tl.where(_bare(one) < 0x7F800000, _bare(one), 0))
        top = tl.maximum(top, tl.where(_bare(two) < 0x7F800000, _bare(two), 0))
    return tl.max(top, 0).to(tl.float32, bitcast=True)


@triton.jit
def _with_care(nan, inf, total, square, value, scale):
    bare = _bare(value)
    value = tl.where(bare < 0x7F800000, value, 0.0) * scale
    nan += (bare > 0x7F800000).to(tl.int32)
    inf += (bare == 0x7F800000).to(tl.int32)
    return nan, inf, total + value, square + value * value


@triton.jit
def _again(base, left, scale, KIND: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """What is not finite is counted and left out, the rest is scaled."""
    at = tl.arange(0, BLOCK)
    nan, inf = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    total, square = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for turn in tl.range(0, ROUNDS):
        one, two = _numbers(_word(base, turn * BLOCK + at, left, KIND, False), KIND)
        nan, inf, total, square = _with_care(nan, inf, total, square, one, scale)
        nan, inf, total, square = _with_care(nan, inf, total, square, two, scale)
    return tl.sum(nan, 0), tl.sum(inf, 0), tl.sum(total, 0), tl.sum(square, 0)


@triton.jit
def _together(sums, counts, out, tensor, begin, end, numel, WIDTH: tl.constexpr):
    """The row of one tensor from its chunks; read past the nearest cache, since other programs wrote them."""
    lane = tl.arange(0, WIDTH)
    most = tl.zeros((WIDTH,), tl.float32)
    total, square = tl.zeros((WIDTH,), tl.float64), tl.zeros((WIDTH,), tl.float64)
    nan, inf = tl.zeros((WIDTH,), tl.int64), tl.zeros((WIDTH,), tl.int64)
    nonzero, mixed = tl.zeros((WIDTH,), tl.int64), tl.zeros((WIDTH,), tl.int32)
    for first in tl.range(begin, end, WIDTH):
        chunk = first + lane
        inside = chunk < end
        at, marks = sums + chunk * 4, counts + chunk * 4
        scale = tl.load(at + 3, mask=inside, other=1.0, cache_modifier=".cg").to(tl.float64)
        most = tl.maximum(most, tl.load(at, mask=inside, other=0.0, cache_modifier=".cg"))
        total += tl.load(at + 1, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float64) / scale
        square += tl.load(at + 2, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float64) / (scale * scale)
        nan += tl.load(marks, mask=inside, other=0, cache_modifier=".cg").to(tl.int64)
        inf += tl.load(marks + 1, mask=inside, other=0, cache_modifier=".cg").to(tl.int64)
        nonzero += tl.load(marks + 2, mask=inside, other=0, cache_modifier=".cg").to(tl.int64)
        mixed += tl.load(marks + 3, mask=inside, other=0, cache_modifier=".cg") * (2 * (chunk - begin) + 1)
    numel = numel.to(tl.float64)
    place = out + tensor * 8
    tl.store(place, tl.sum(nan, 0).to(tl.float64))
    tl.store(place + 1, tl.sum(inf, 0).to(tl.float64))
    tl.store(place + 2, tl.max(most, 0).to(tl.float64))
    tl.store(place + 3, tl.sqrt(tl.sum(square, 0)))
    tl.store(place + 4, tl.sum(total, 0) / numel)
    tl.store(place + 5, (numel - tl.sum(nonzero, 0).to(tl.float64)) / numel)
    tl.store(place + 6, (tl.sum(mixed.to(tl.int64), 0) & 0xFFFFFFFF).to(tl.float64))
    tl.store(place + 7, numel)


@kernel("statistics")
@triton.jit
def _chunks(
    addresses, numels, owners, starts, firsts, sums, counts, finished, out,
    KIND: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr, PRIME: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    owner, start = tl.load(owners + chunk), tl.load(starts + chunk)
    numel = tl.load(numels + owner)
    left = numel - start
    address = tl.load(addresses + owner)
    if KIND == "fp32":
        room = BLOCK * ROUNDS
        base = (address + 4 * start).to(tl.pointer_type(tl.int32))
    else:
        room = 2 * BLOCK * ROUNDS
        base = (address + 2 * start).to(tl.pointer_type(tl.int16))
    if ALIGNED and left >= room:
        base = tl.multiple_of(base, 16)
        most, total, square, nonzero, mixed = _walk(base, left, KIND, BLOCK, ROUNDS, True, PRIME)
    else:
        most, total, square, nonzero, mixed = _walk(base, left, KIND, BLOCK, ROUNDS, False, PRIME)
    nan, inf, scale = 0, 0, 1.0
    plain = (square < _LARGE * _LARGE) & ((most > _TINY) | (nonzero == 0))
    if not plain:  # NaN compares false, so it comes here too
        most = _highest(base, left, KIND, BLOCK, ROUNDS)
        if most > _LARGE:
            scale = 2.0**-80
        elif most < _TINY:
            scale = 2.0**80
        nan, inf, total, square = _again(base, left, scale, KIND, BLOCK, ROUNDS)
    place = sums + chunk * 4
    tl.store(place, most)
    tl.store(place + 1, total)
    tl.store(place + 2, square)
    tl.store(place + 3, scale)
    place = counts + chunk * 4
    tl.store(place, nan)
    tl.store(place + 1, inf)
    tl.store(place + 2, nonzero)
    tl.store(place + 3, mixed)
    begin, end = tl.load(firsts + owner), tl.load(firsts + owner + 1)
    tl.debug_barrier()
    if tl.atomic_add(finished + owner, 1, sem="acq_rel") == end - begin - 1:
        tl.store(finished + owner, 0)  # for the next launch
        _together(sums, counts, out, owner, begin, end, numel, 128)


@kernel("statistics.sample")
@triton.jit
def _sample(addresses, numels, strides, out, KIND: tl.constexpr, COUNT: tl.constexpr):
    """COUNT values of each tensor, a stride apart; the last ones NaN where a tensor holds fewer."""
    tensor = tl.program_id(0)
    numel = tl.load(numels + tensor)
    lane = tl.arange(0, COUNT).to(tl.int64)
    at = lane * tl.load(strides + tensor)
    if KIND == "fp32":
        base = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))
    elif KIND == "bf16":
        base = tl.load(addresses + tensor).to(tl.pointer_type(tl.bfloat16))
    else:
        base = tl.load(addresses + tensor).to(tl.pointer_type(tl.float16))
    value = tl.load(base + at, mask=at < numel, other=0.0).to(tl.float32)
    tl.store(out + tensor * COUNT + lane, tl.where(at < numel, value, float("nan")))


def chunk_of(dtype: torch.dtype) -> int:
    """Elements a program takes."""
    return BLOCK * ROUNDS * (1 if dtype == torch.float32 else 2)


class _Layout(NamedTuple):
    """Where the tensors lie, on the device; and the launch over them, settled but for the output."""

    table: Table
    dtype: torch.dtype
    shape: Tensor
    whole: Bound
    strides: dict[int, Tensor]
    """By how many elements are sampled: how far apart they lie, tensor by tensor."""

    def moves(self, tensors: Sequence[Tensor], pointers: list[int]) -> bool:
        """The same sizes at other addresses; False where another launch is needed."""
        if tensors[0].dtype is not self.dtype or all(at % 16 == 0 for at in pointers) is not self.table.aligned:
            return False
        if tensors[0].device != self.table.addresses.device:
            return False
        if not all(tensor.is_contiguous() or _dense(tensor) for tensor in tensors):
            return False
        send(pointers, self.table.addresses)
        return True


class Settled:
    """The launch over tensors that are like those of the last time in all but where they lie, as the gradients of the
    same parameters are: settled but for that, and for where the table goes."""

    def __init__(self, layout: _Layout, tensors: Sequence[Tensor]) -> None:
        self._launch = layout.whole.function_of("addresses", "out")
        self._alike = likeness(tensors)
        self._aligned = layout.table.aligned
        self._words = struct.Struct(f"<{len(tensors)}q")

    def __call__(self, tensors: Sequence[Tensor], page: int, addresses: memoryview) -> bool:
        """The same as ``Statistics.again``, with a ``page`` given by its address, and room in it for the ``addresses``
        as bytes; False where the tensors are not alike."""
        if not self._alike(*tensors):
            return False
        pointers = list(map(_pointer, tensors))
        words = self._words.pack(*pointers)
        if not all(pointers) or (self._aligned and words[::8].translate(None, _ALIGNED)):
            return False
        addresses[:] = words
        self._launch(page + 64 * len(pointers), page)
        return True


class Statistics:
    """The statistics of the same tensors again and again, such as all gradients of a model; on one stream."""

    def __init__(self, *, heard: bool = True) -> None:
        """``heard``: whether its launches are the run's; those of whoever watches the run are not."""
        self._kept = Kept[_Layout]()
        self._chunks, self._draw = (_chunks, _sample) if heard else (_chunks.unheard(), _sample.unheard())

    def __call__(self, tensors: Sequence[Tensor], around: AbstractContextManager[Any] | None = None) -> Tensor:
        """A table (tensors, 8), columns as in NAMES. Asks nothing of the device. The launch alone is made inside
        ``around``."""
        layout = self._placed(tensors)
        out = torch.empty_like(layout.shape)
        with around or nullcontext():
            layout.whole.launch(addresses=layout.table.addresses, out=out)
        return out

    def again(self, tensors: Sequence[Tensor], page: Tensor, addresses: Any) -> bool:
        """The same as the last call, for tensors of the same sizes wherever they lie; False where they are not such.

        ``page`` is pinned memory of the host: the table comes first, then room for the ``addresses`` of the tensors,
        an array over it. The device reads these from there, and writes the table there by itself: no copy is made.
        """
        layout = self._kept.alike(list(map(Tensor.numel, tensors)))
        if layout is None or not layout.whole.settled or set(map(_dtype, tensors)) != {layout.dtype}:
            return False
        addresses[:] = list(map(_pointer, tensors))
        if (addresses & 15).any() == layout.table.aligned or not addresses.all():
            return False
        if set(map(Tensor.get_device, tensors)) != {layout.shape.get_device()}:
            return False
        if not _all_dense(tensors):
            return False
        at = page.data_ptr()
        layout.whole.launch(addresses=at + 64 * len(tensors), out=at)
        return True

    def settled(self, tensors: Sequence[Tensor]) -> Settled | None:
        """The same again and again, for tensors that are like these."""
        layout = self._kept.alike(list(map(Tensor.numel, tensors)))
        if layout is None or not layout.whole.settled or set(map(_dtype, tensors)) != {layout.dtype}:
            return None
        if set(map(Tensor.get_device, tensors)) != {layout.shape.get_device()} or not _all_dense(tensors):
            return None
        return Settled(layout, tensors)

    def sample(self, tensors: Sequence[Tensor], count: int = 1024) -> Tensor:
        """``count`` values of each tensor, evenly spread, as fp32 (tensors, count)."""
        wants("statistics", "count", count & (count - 1) == 0 and count > 0, "a power of two", count)
        layout = self._placed(tensors)
        if count not in layout.strides:
            layout.strides[count] = put([spacing(each, count) for each in tensors], torch.int64, tensors[0].device)
        out = torch.empty((len(tensors), count), dtype=torch.float32, device=tensors[0].device)
        self._draw.launch(
            (len(tensors),), addresses=layout.table.addresses, numels=layout.table.numels,
            strides=layout.strides[count], out=out, KIND=_KIND[layout.dtype], COUNT=count, num_warps=4,
        )  # fmt: skip
        return out

    def _placed(self, tensors: Sequence[Tensor]) -> _Layout:
        pointers, numels = list(map(_pointer, tensors)), list(map(Tensor.numel, tensors))
        return self._kept.at(
            pointers, numels, lambda: _layout(tensors, pointers, self._chunks),
            lambda layout: layout.moves(tensors, pointers),
        )  # fmt: skip


def spacing(tensor: Tensor, count: int) -> int:
    """How far apart ``count`` elements lie: evenly, and not in step with the last dimension, so that of rows that begin
    alike other columns are seen too."""
    stride, width = max(1, tensor.numel() // count), tensor.shape[-1] if tensor.dim() > 1 else 1
    while math.gcd(stride, width) > 1:
        stride -= 1
    return stride


def warm(dtype: torch.dtype, device: int) -> None:
    """Compiles for ``device`` what tensors of ``dtype`` will need; launches nothing."""
    from triton.runtime.jit import MockTensor

    def any_of(**types: torch.dtype) -> dict[str, Any]:
        return {name: MockTensor.wrap_dtype(kind) for name, kind in types.items()}

    int32, int64, float32 = torch.int32, torch.int64, torch.float32
    where = any_of(addresses=int64, numels=int64)
    rest = any_of(
        owners=int32, starts=int64, firsts=int32, sums=float32, counts=int32, finished=int32, out=torch.float64
    )
    with torch.cuda.device(device):
        for aligned in (True, False):
            _chunks.prepare(
                **where, **rest, KIND=_KIND[dtype], BLOCK=BLOCK, ROUNDS=ROUNDS, PRIME=_PRIME,
                ALIGNED=aligned, num_warps=WARPS,
            )  # fmt: skip
        drawn = any_of(strides=int64, out=float32)
        _sample.prepare(**where, **drawn, KIND=_KIND[dtype], COUNT=1024, num_warps=4)


def _layout(tensors: Sequence[Tensor], pointers: list[int], brick: Kernel) -> _Layout:
    _checked(tensors)
    device, dtype, chunk = tensors[0].device, tensors[0].dtype, chunk_of(tensors[0].dtype)
    placed = table(pointers, [tensor.numel() for tensor in tensors], chunk=chunk, device=device)
    chunks = len(placed.owners)
    whole = brick.bind(
        (chunks,), addresses=placed.addresses, numels=placed.numels, owners=placed.owners, starts=placed.starts,
        firsts=put([0, *itertools.accumulate(placed.parts)], torch.int32, device),
        sums=torch.empty((chunks, 4), dtype=torch.float32, device=device),
        counts=torch.empty((chunks, 4), dtype=torch.int32, device=device),
        finished=torch.zeros(len(tensors), dtype=torch.int32, device=device),
        KIND=_KIND[dtype], BLOCK=BLOCK, ROUNDS=ROUNDS, PRIME=_PRIME, ALIGNED=placed.aligned, num_warps=WARPS,
    )  # fmt: skip
    return _Layout(placed, dtype, torch.empty((len(tensors), 8), dtype=torch.float64, device=device), whole, {})


def _checked(tensors: Sequence[Tensor]) -> None:
    wants("statistics", "tensors", len(tensors) > 0, "at least one tensor", len(tensors))
    first = tensors[0]
    for number, tensor in enumerate(tensors):
        name = f"tensors[{number}]"
        wants("statistics", name, tensor.dtype in FLOATS, "float32, bfloat16 or float16", tensor.dtype)
        wants("statistics", name, tensor.dtype == first.dtype, f"{first.dtype}, as the first", tensor.dtype)
        wants("statistics", name, tensor.device == first.device, f"on {first.device}", tensor.device)
        wants("statistics", name, _dense(tensor), "dense (no gaps between elements)", tensor.stride())
        wants("statistics", name, tensor.numel() > 0, "not empty", tuple(tensor.shape))


def _all_dense(tensors: Sequence[Tensor]) -> bool:
    return all(map(_contiguous, tensors)) or all(map(_dense, tensors))


def _dense(tensor: Tensor) -> bool:
    """Whether its elements fill one stretch of memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def statistics(tensors: Sequence[Tensor]) -> Tensor:
    """Once, for any tensors."""
    if tensors and takes_torch("statistics", tensors[0]):
        return reference(tensors)
    return Statistics()(tensors)


def reference(tensors: Sequence[Tensor]) -> Tensor:
    """The same table in plain torch, slowly."""
    return torch.stack([_of_one(tensor) for tensor in tensors])


def _of_one(tensor: Tensor) -> Tensor:
    values = tensor.detach().double().reshape(-1)
    finite = values[torch.isfinite(values)]
    zero = values.new_zeros(())
    return torch.stack(
        [
            torch.isnan(values).sum().double(), torch.isinf(values).sum().double(),
            finite.abs().max() if finite.numel() else zero, finite.square().sum().sqrt(),
            finite.sum() / values.numel(), (values == 0).double().mean(), _checksum(tensor),
            zero + values.numel(),
        ]
    )  # fmt: skip


def _checksum(tensor: Tensor) -> Tensor:
    """Rounds into lanes, lanes stirred and added, chunks added with odd weights; all modulo 2^32."""
    bits = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    words = tensor.detach().contiguous().reshape(-1).view(bits).cpu().long()
    words = words & (0xFFFFFFFF if bits == torch.int32 else 0xFFFF)
    padded = torch.zeros(triton.cdiv(len(words), chunk_of(tensor.dtype)) * chunk_of(tensor.dtype), dtype=torch.int64)
    padded[: len(words)] = words
    if bits == torch.int16:
        padded = padded[::2] | (padded[1::2] << 16)
    rounds = padded.view(-1, ROUNDS, BLOCK)
    mixed = torch.zeros_like(rounds[:, 0])
    for turn in range(ROUNDS):
        mixed = ((mixed ^ (mixed >> 15)) * _PRIME + rounds[:, turn]) & 0xFFFFFFFF
    lanes = _stirred_reference((mixed + torch.arange(BLOCK)) & 0xFFFFFFFF).sum(1) & 0xFFFFFFFF
    chunks = (lanes * (2 * torch.arange(len(lanes)) + 1) & 0xFFFFFFFF).sum() & 0xFFFFFFFF
    return chunks.double().to(tensor.device)


def _stirred_reference(h: Tensor) -> Tensor:
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def sample_reference(tensors: Sequence[Tensor], count: int = 1024) -> Tensor:
    out = torch.full((len(tensors), count), float("nan"), device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        flat = tensor.detach().reshape(-1)
        at = torch.arange(min(count, len(flat)), device=flat.device) * spacing(tensor, count)
        out[number, : len(at)] = flat[at].float()
    return out


def as_dicts(table: Tensor) -> list[dict[str, Any]]:
    """Rows by name; waits for the device."""
    return [dict(zip(NAMES, row, strict=True)) for row in table.tolist()]
