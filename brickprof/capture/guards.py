"""Copies of tensors between guards: what a kernel writes outside of its arguments shows there, and harms nobody.

Enters: the tensors of a launch. Leaves: tensors that hold the same, of the same type, shape, strides and alignment, in
one buffer; and after the launch on them a small tensor on the device, of which ``touches`` makes what was touched.

    | guard | storage of x | guard | guard | storage of y | guard |

Whole storages are copied, each once: tensors that share one do so again, and a write beside a view, but inside its
storage, is none that could be told from an intended one. The guard of each storage holds a value of its own, so that a
copy from one guard to another shows; the values are of one order of magnitude, so that a sum of two shows as well, and
small where they are integers: one that is read as an index leads nowhere far. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

Tensor = torch.Tensor
_LEAST, _MOST, _TIMES = 64 * 1024, 4 * 1024 * 1024, 4
"""Bytes of a guard, and how many times the storage it is: a kernel that was given a quarter of the room that it needs
is not rare, and stays inside."""
_ALIGNED = 256
_UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BYTES = (0x3C, 0xBC, 0x3D, 0xBD, 0x3B, 0xBB, 0x3E, 0xBE, 0x3A, 0xBA)
SIDES = ("before", "behind")


class Unfit(Exception):
    """These tensors cannot be copied as they lie."""


class Slot(NamedTuple):
    """Where a storage lies in the buffer, in bytes."""

    start: int
    nbytes: int
    guard: int
    unit: int
    mark: int
    """What its guards hold, as integers of ``unit`` bytes."""

    @property
    def end(self) -> int:
        return self.start + self.nbytes


class Touch(NamedTuple):
    """A guard that was written to. Distances are in bytes, from the storage's nearer end."""

    slot: int
    side: str
    bytes: int
    nearest: int
    farthest: int
    guard: int


class Guarded:
    """The tensors of one launch, laid out; ``copy`` makes the copies."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._places = [_place(tensor) for tensor in self._tensors]
        self._distinct = list(dict.fromkeys(self._places))
        _check_apart(self._distinct)
        self.slots: list[Slot] = []
        end = 0
        for number, place in enumerate(self._distinct):
            self.slots.append(slot := self._slot(number, place, end))
            end = slot.end + slot.guard
        self.nbytes = end + 2 * _ALIGNED
        self._shift = 0
        self._buffer: Tensor | None = None

    def _slot(self, number: int, place: tuple[int, int], end: int) -> Slot:
        address, nbytes = place
        inside = [each for each, where in zip(self._tensors, self._places, strict=True) if where == place]
        guard = guard_bytes(nbytes)
        unit = min(each.element_size() for each in inside)
        if nbytes % unit:
            unit = 1
        start = end + guard
        start += (address - start) % _ALIGNED
        return Slot(start, nbytes, guard, unit, _mark(number, unit, inside[0].dtype))

    def slot_of(self, place: int) -> int:
        """The slot of the tensor at ``place``."""
        return self._distinct.index(self._places[place])

    def whole(self, place: int) -> bool:
        """Whether the tensor at ``place`` is all that its storage holds."""
        tensor = self._tensors[place]
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        used = (1 + reach) * tensor.element_size() if tensor.numel() else 0
        return used == self._places[place][1]

    def copy(self) -> list[Tensor]:
        """The tensors again, between guards."""
        device = self._tensors[0].device
        buffer = self._buffer = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        self._shift = -buffer.data_ptr() % _ALIGNED
        sources = {where: each for each, where in zip(self._tensors, self._places, strict=True)}
        for place, slot in zip(self._distinct, self.slots, strict=True):
            for side in SIDES:
                self._guard(slot, side).fill_(slot.mark)
            if slot.nbytes:
                self._bytes(slot.start, slot.nbytes).copy_(_all_bytes(sources[place]))
        return [
            _like(tensor, buffer, self._shift + self.slots[self.slot_of(place)].start)
            for place, tensor in enumerate(self._tensors)
        ]

    def changes(self) -> Tensor:
        """For each slot and side: how many units of the guard changed, how many before the first of them did not, and
        how many after the last; on the device. The buffer and the tensors are let go."""
        rows = [_changes(self._guard(slot, side), slot.mark) for slot in self.slots for side in SIDES]
        self._buffer, self._tensors = None, []
        return torch.stack(rows).view(len(self.slots), len(SIDES), 3)

    def touches(self, rows: Sequence[Sequence[Sequence[int]]]) -> list[Touch]:
        """What the numbers of ``changes`` say, once they are on the host."""
        found = []
        for number, (slot, sides) in enumerate(zip(self.slots, rows, strict=True)):
            for side, (changed, head, tail) in zip(SIDES, sides, strict=True):
                if changed:
                    near, far = (tail, head) if side == "before" else (head, tail)
                    counted = (changed * slot.unit, near * slot.unit, slot.guard - far * slot.unit)
                    found.append(Touch(number, side, *counted, slot.guard))
        return found

    def _guard(self, slot: Slot, side: str) -> Tensor:
        start = slot.start - slot.guard if side == "before" else slot.end
        return self._bytes(start, slot.guard).view(_UNITS[slot.unit])

    def _bytes(self, start: int, count: int) -> Tensor:
        assert self._buffer is not None
        return self._buffer.narrow(0, self._shift + start, count)


def guard_bytes(nbytes: int) -> int:
    """How many bytes are guarded on each side of ``nbytes``."""
    return -(-min(max(_LEAST, _TIMES * nbytes), _MOST) // _ALIGNED) * _ALIGNED


def _place(tensor: Tensor) -> tuple[int, int]:
    """Address and length of a tensor's storage."""
    if tensor.layout is not torch.strided or tensor.element_size() not in _UNITS:
        raise Unfit("a layout or type that is not copied")
    storage = tensor.untyped_storage()
    if storage.data_ptr() % tensor.element_size():
        raise Unfit("a storage that is not aligned")
    return storage.data_ptr(), storage.nbytes()


def _check_apart(places: list[tuple[int, int]]) -> None:
    full = sorted(place for place in places if place[1])
    if any(address + nbytes > following for (address, nbytes), (following, _) in pairwise(full)):
        raise Unfit("storages that overlap")


def _mark(number: int, unit: int, dtype: torch.dtype) -> int:
    if unit > 1 and not dtype.is_floating_point:
        return 1 + number % 64
    return int.from_bytes(bytes([_BYTES[number % len(_BYTES)]]) * unit, "little", signed=unit > 1)


def _all_bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))


def _like(tensor: Tensor, buffer: Tensor, start: int) -> Tensor:
    """A tensor as ``tensor``, of the storage that begins at byte ``start`` of ``buffer``."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    offset = start // tensor.element_size() + tensor.storage_offset()
    return empty.set_(buffer.untyped_storage(), offset, tensor.size(), tensor.stride())


def _changes(guard: Tensor, mark: int) -> Tensor:
    changed = (guard != mark).view(torch.uint8)
    return torch.stack([changed.sum(dtype=torch.int64), changed.argmax(), changed.flip(0).argmax()])
