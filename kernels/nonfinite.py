"""Which of many tensors hold something that is not finite: one launch, which reads them only where there is a sign.

    nan, inf     how many, of every tensor; zero and unread where the gate is finite

Enters: tensors of any of the three types on one device, and a gate there, one fp32 number that was made of them, such
as a loss. Leaves: a table (tensors, 2) of int64 there; nobody waits.

What is not finite makes everything that is computed from it so, with few exceptions: a finite gate says that nothing
went wrong on the way to it. Each program asks the gate first and is done if it is, so the launch takes the device some
microseconds however large the tensors are. Integers are added, in any order: the counts are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from brickprof.kernels._tables import put, send
from brickprof.operators.launch import FLOATS, INFINITE, Bound, kernel, wants

BLOCK, PROGRAMS = 1024, 32
"""Elements that a program takes at a time, and programs a tensor."""
_MOST_SIZES = 8
_ROW = 16
"""Bytes that a row of counts takes."""


@kernel("nonfinite")
@triton.jit
def _count(gate, rows, out, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Row by row: address, elements, the bits of infinity."""
    bits = tl.load(gate).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if bits >= 0x7F800000:
        row = tl.program_id(0)
        address, numel = tl.load(rows + 3 * row), tl.load(rows + 3 * row + 1)
        limit = tl.load(rows + 3 * row + 2).to(tl.int32)
        wide, narrow = address.to(tl.pointer_type(tl.int32)), address.to(tl.pointer_type(tl.int16))
        lane = tl.arange(0, BLOCK).to(tl.int64)
        nan, inf = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for first in tl.range(tl.program_id(1) * BLOCK, numel, PROGRAMS * BLOCK):
            at = first + lane
            if limit > 0xFFFF:
                bare = tl.load(wide + at, mask=at < numel, other=0) & 0x7FFFFFFF
            else:
                bare = tl.load(narrow + at, mask=at < numel, other=0).to(tl.int32) & 0x7FFF
            nan += (bare > limit).to(tl.int64)
            inf += (bare == limit).to(tl.int64)
        tl.atomic_add(out + 2 * row, tl.sum(nan, 0))
        tl.atomic_add(out + 2 * row + 1, tl.sum(inf, 0))


class NonFinite:
    """The same question step after step, of as many tensors or fewer; on one stream."""

    def __init__(self, *, heard: bool = True) -> None:
        """``heard``: whether its launches are the run's; those of whoever watches the run are not."""
        self._count = _count if heard else _count.unheard()
        self._made: dict[int, tuple[list[int], Tensor, Bound]] = {}
        """By how many tensors: where they were, the same on the device, and the launch."""

    def __call__(self, gate: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """A table (tensors, 2) of nan and inf. Asks nothing of the device."""
        rows = [number for each in tensors for number in (each.data_ptr(), each.numel(), INFINITE.get(each.dtype, 0))]
        made = self._made.get(len(rows))
        if made is None or made[0] != rows or made[1].device != gate.device:
            _checked_tensors(gate, tensors)
        _checked_gate(gate)
        bound = self._placed(rows, gate)
        out = torch.zeros((len(tensors), 2), dtype=torch.int64, device=gate.device)
        bound.launch(gate=gate, out=out)
        return out

    def add(self, gate: Tensor, rows: list[int], out: Tensor, at: int) -> None:
        """The same for tensors that are ``readable`` and on one device with the gate: ``rows`` has the address of each,
        how many elements it has, and the bits of infinity in its type. What is counted is added to ``out`` (rows, 2),
        from its row ``at`` on."""
        _checked_gate(gate)
        bound = self._placed(rows, gate)
        wants("nonfinite", "out", 3 * (len(out) - at) >= len(rows), f"{len(rows) // 3} rows from {at} on", len(out))
        bound.launch(gate=gate, out=out.data_ptr() + at * _ROW if bound.settled else out[at:])

    def _placed(self, rows: list[int], gate: Tensor) -> Bound:
        made = self._made.get(len(rows))
        if made is not None and made[1].device == gate.device:
            known, on_device, bound = made
            if known != rows:
                send(rows, on_device)
                self._made[len(rows)] = rows, on_device, bound
            return bound
        if len(self._made) >= _MOST_SIZES:
            self._made.clear()
        on_device = put(rows, torch.int64, gate.device)
        grid, out = (len(rows) // 3, PROGRAMS), torch.empty((1, 2), dtype=torch.int64, device=gate.device)
        like = torch.empty((), dtype=torch.float32, device=gate.device)  # not the user's loss: a binding is kept
        bound = self._count.bind(grid, gate=like, rows=on_device, out=out, BLOCK=BLOCK, PROGRAMS=PROGRAMS, num_warps=4)
        self._made[len(rows)] = rows, on_device, bound
        return bound


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

    types: dict[str, Any] = {"gate": torch.float32, "rows": torch.int64, "out": torch.int64}
    given = {name: MockTensor.wrap_dtype(kind) for name, kind in types.items()}
    with torch.cuda.device(device):
        _count.prepare(**given, BLOCK=BLOCK, PROGRAMS=PROGRAMS, num_warps=4)


def reference(gate: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    if bool(torch.isfinite(gate)):
        return torch.zeros((len(tensors), 2), dtype=torch.int64, device=gate.device)
    counts = [[int(torch.isnan(each).sum()), int(torch.isinf(each).sum())] for each in tensors]
    return torch.tensor(counts, dtype=torch.int64, device=gate.device)
