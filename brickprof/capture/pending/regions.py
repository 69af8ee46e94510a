"""Bytes that a tensor covers, and whether two tensors share any.

Enters: shapes and strides. Leaves: ``Region``. Two columns of one matrix lie between each other and share nothing, so
bounds alone accuse the innocent; numpy decides the rest exactly, without ever looking at the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_MOST_WORK = 100_000
_ABOVE_NULL = 1 << 40


class Region(NamedTuple):
    lo: int
    hi: int
    """The first byte, and the one behind the last, from the beginning of the storage."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    itemsize: int

    @property
    def nbytes(self) -> int:
        count = self.itemsize
        for size in self.shape:
            count *= size
        return count

    @property
    def dense(self) -> bool:
        return self.hi - self.lo == self.nbytes

    def moved(self, by: int) -> Region:
        return self._replace(lo=self.lo + by, hi=self.hi + by)


def region(offset: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Region:
    """The region of a tensor, from its offset and strides in elements."""
    if 0 in shape:
        return Region(offset * itemsize, offset * itemsize, (0,), (itemsize,), itemsize)
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    lo = offset * itemsize
    return Region(lo, lo + (reach + 1) * itemsize, tuple(shape), tuple(s * itemsize for s in strides), itemsize)


def within(inner: Region, outer: Region) -> bool:
    """Whether ``outer`` covers ``inner`` for certain."""
    return inner == outer or (outer.dense and outer.lo <= inner.lo and inner.hi <= outer.hi)


def shared(one: Region, other: Region) -> bool:
    """Whether the two have a byte in common; what cannot be decided is not held against anybody."""
    if one.hi <= other.lo or other.hi <= one.lo:
        return False
    if one.dense and other.dense:
        return True
    try:
        return bool(np.shares_memory(_array(one), _array(other), max_work=_MOST_WORK))  # type: ignore[arg-type]
    except Exception:  # too hard, or too many dimensions
        return False


def _array(of: Region) -> np.ndarray:
    return np.asarray(_Layout(of))


class _Layout:
    """An array's outside: nothing is ever read through it."""

    def __init__(self, of: Region) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{of.itemsize}", "data": (_ABOVE_NULL + of.lo, True),
            "shape": of.shape, "strides": of.strides,
        }  # fmt: skip
