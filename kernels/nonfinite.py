"""Which of many tensors hold something that is not finite: one launch, which reads them only where there is a sign.

    nan, inf     how many, of every tensor; zero and unread where the gate is finite

Enters: tensors of any of the three types on one device, and a gate there, one fp32 number that was made of them, such
as a loss. Leaves: a table (tensors, 2) of int64 there; nobody waits.

What is not finite makes everything that is computed from it so, with few exceptions: a finite gate says that nothing
went wrong on the way to it. Each program asks the gate first and is done if it is, so the launch takes the device some
microseconds however large the tensors are. Integers are added, in any order: the counts are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.operators.launch import FLOATS, KIND, kernel, wants

BLOCK, PROGRAMS = 1024, 32
"""Elements that a program takes at a time, and programs a tensor."""
SLOTS = 16
"""Tensors of a launch. Where they lie is told with the launch itself: outputs move from step to step, and a table on
the device would have to be sent again each time, which takes the host several times as long."""
_PLACES = [name for slot in range(SLOTS) for name in (f"a{slot}", f"n{slot}")]
_CONSTANTS = {"BLOCK": BLOCK, "PROGRAMS": PROGRAMS, "SLOTS": SLOTS}
_ROW = 16
"""Bytes that a row of counts takes."""


@kernel("nonfinite")
@triton.jit(do_not_specialize=_PLACES)
def _count(
    gate, out,
    a0: tl.int64, n0: tl.int64, a1: tl.int64, n1: tl.int64, a2: tl.int64, n2: tl.int64, a3: tl.int64, n3: tl.int64,
    a4: tl.int64, n4: tl.int64, a5: tl.int64, n5: tl.int64, a6: tl.int64, n6: tl.int64, a7: tl.int64, n7: tl.int64,
    a8: tl.int64, n8: tl.int64, a9: tl.int64, n9: tl.int64, a10: tl.int64, n10: tl.int64, a11: tl.int64, n11: tl.int64,
    a12: tl.int64, n12: tl.int64, a13: tl.int64, n13: tl.int64,
    a14: tl.int64, n14: tl.int64, a15: tl.int64, n15: tl.int64,
    BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Of each tensor: its address, and four times its elements plus the place of its type among ``FLOATS``."""
    bits = tl.load(gate).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if bits >= 0x7F800000:
        row = tl.program_id(0)
        addresses = (a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15)
        sizes = (n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15)
        address, size = a0, n0
        for slot in tl.static_range(1, SLOTS):
            address = tl.where(row == slot, addresses[slot], address)
            size = tl.where(row == slot, sizes[slot], size)
        kind, numel = size & 3, size >> 2
        # More than infinity's bits, without the sign, is NaN.
        limit = tl.where(kind == 0, 0x7F800000, tl.where(kind == 1, 0x7F80, 0x7C00))
        wide, narrow = address.to(tl.pointer_type(tl.int32)), address.to(tl.pointer_type(tl.int16))
        lane = tl.arange(0, BLOCK).to(tl.int64)
        nan, inf = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for first in tl.range(tl.program_id(1) * BLOCK, numel, PROGRAMS * BLOCK):
            at = first + lane
            if kind == 0:
                bare = tl.load(wide + at, mask=at < numel, other=0) & 0x7FFFFFFF
            else:
                bare = tl.load(narrow + at, mask=at < numel, other=0).to(tl.int32) & 0x7FFF
            nan += (bare > limit).to(tl.int64)
            inf += (bare == limit).to(tl.int64)
        tl.atomic_add(out + 2 * row, tl.sum(nan, 0))
        tl.atomic_add(out + 2 * row + 1, tl.sum(inf, 0))


class NonFinite:
    """The same question step after step, of any tensors."""

    def __init__(self, *, heard: bool = True) -> None:
        """``heard``: whether its launches are the run's; those of whoever watches the run are not."""
        self._count = _count if heard else _count.unheard()
        self._bound: dict[tuple[int, int], Callable[..., None]] = {}
        """By the device and how many tensors there are."""

    def __call__(self, gate: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """A table (tensors, 2) of nan and inf. Asks nothing of the device."""
        _checked_tensors(gate, tensors)
        out = torch.zeros((len(tensors), 2), dtype=torch.int64, device=gate.device)
        self.add(gate, [number for each in tensors for number in (each.data_ptr(), size_of(each))], out)
        return out

    def add(self, gate: Tensor, places: list[int], out: Tensor, at: int = 0) -> None:
        """The same for tensors that are ``readable`` and on one device with the gate: ``places`` has, one after
        another, the address of each and its ``size_of``. What is counted is added to ``out`` (rows, 2), from its row
        ``at`` on."""
        _checked_gate(gate)
        tensors = len(places) // 2
        wants("nonfinite", "out", len(out) - at >= tensors, f"{tensors} rows from {at} on", len(out))
        device = gate.get_device()
        for first in range(0, tensors, SLOTS):
            count = min(tensors - first, SLOTS)
            told = places if tensors <= SLOTS else places[2 * first : 2 * (first + count)]
            launch = self._bound.get((device, count))
            if launch is None:
                self._first(gate, told, out[at + first :], (device, count))
            else:
                launch(gate.data_ptr(), out.data_ptr() + (at + first) * _ROW, *told)

    def settled(self, device: int, tensors: int) -> Callable[..., None] | None:
        """The launch for so many as a function of addresses: the gate's, that of the first row of counts, and what
        ``places`` holds, one by one. None before the first time."""
        if tensors <= SLOTS:
            return self._bound.get((device, tensors))
        parts = [self._bound.get((device, min(tensors - first, SLOTS))) for first in range(0, tensors, SLOTS)]
        return None if None in parts else _one_by_one([part for part in parts if part is not None])

    def _first(self, gate: Tensor, places: Sequence[int], out: Tensor, key: tuple[int, int]) -> None:
        whole = dict(zip(_PLACES, [*places, *[0] * (2 * SLOTS - len(places))], strict=True))
        # A binding is kept: not with the user's loss in it.
        like = torch.empty((), dtype=torch.float32, device=gate.device)
        grid = key[1], _CONSTANTS["PROGRAMS"]
        bound = self._count.bind(grid, gate=like, out=out, **whole, **_CONSTANTS, num_warps=4)
        bound.launch(gate=gate)
        if bound.settled:
            self._bound[key] = bound.function_of("gate", "out", *_PLACES[: len(places)])


def _one_by_one(parts: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def launch(gate: int, out: int, *places: int) -> None:
        for number, part in enumerate(parts):
            part(gate, out + number * SLOTS * _ROW, *places[2 * SLOTS * number : 2 * SLOTS * (number + 1)])

    return launch


def size_of(tensor: Tensor) -> int:
    """Its elements and its type in one number."""
    return tensor.numel() << 2 | KIND[tensor.dtype]


def readable(tensor: Tensor) -> bool:
    """Whether the kernel reads it: of one of its types, and its elements fill one stretch of memory."""
    if tensor.dtype not in FLOATS or not tensor.numel():
        return False
    if tensor.is_contiguous():
        return True
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _checked_gate(gate: Tensor) -> None:
    wants("nonfinite", "gate", gate.numel() == 1 and gate.dtype == torch.float32, "one float32", gate.dtype)
    wants("nonfinite", "gate", gate.data_ptr() % 16 == 0, "at a multiple of 16 bytes", gate.device)


def _checked_tensors(gate: Tensor, tensors: Sequence[Tensor]) -> None:
    wants("nonfinite", "tensors", len(tensors) > 0, "at least one tensor", len(tensors))
    for number, tensor in enumerate(tensors):
        wants("nonfinite", f"tensors[{number}]", readable(tensor), "float32, bfloat16 or float16, dense", tensor.dtype)
        wants("nonfinite", f"tensors[{number}]", tensor.device == gate.device, f"on {gate.device}", tensor.device)


def warm(device: int) -> None:
    """Compiles the kernel for ``device``; launches nothing."""
    from triton.runtime.jit import MockTensor

    types: dict[str, Any] = {"gate": torch.float32, "out": torch.int64}
    given = {name: MockTensor.wrap_dtype(kind) for name, kind in types.items()}
    with torch.cuda.device(device):
        _count.prepare(**given, **dict.fromkeys(_PLACES, 0), **_CONSTANTS, num_warps=4)


def reference(gate: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    if bool(torch.isfinite(gate)):
        return torch.zeros((len(tensors), 2), dtype=torch.int64, device=gate.device)
    counts = [[int(torch.isnan(each).sum()), int(torch.isinf(each).sum())] for each in tensors]
    return torch.tensor(counts, dtype=torch.int64, device=gate.device)
