"""Writes of the host that torch does not see: into a numpy view, from a thread, through a pointer.

Enters: pinned buffers as they are copied to a device. Leaves: races. A copy to a device only reads its buffer. So a
buffer that is copied again, holds something else by now, and was never known to be free in between was written too
early, whoever did it. Some bytes of it stand for the rest: what they miss is not told.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import NamedTuple

from brickprof.capture.pending.clocks import HOST
from brickprof.capture.pending.ledger import Ledger, Memory
from brickprof.capture.pending.races import Use

_SLICES, _SLICE = 64, 64


class Print(NamedTuple):
    use: Use
    sum: int


class Contents:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def sent(self, memory: Memory, use: Use, address: int) -> None:
        """``use`` copies what lies at ``address``; called before it is entered in the ledger."""
        if not use.region.dense:
            return
        now = fingerprint(address, use.region.nbytes)
        clocks = self._ledger.clocks
        known = [each for each in memory.prints if not clocks.known(HOST, each.use.agent, each.use.number)]
        for each in known:
            if each.use.region == use.region and each.sum != now and (HOST, each.use.number) not in memory.accused:
                memory.accused.add((HOST, each.use.number))
                writer = Use(HOST, "a write that torch did not see", True, use.region, use.site)
                self._ledger.accuse(memory, each.use, writer, "write-unseen")
        memory.prints[:] = [*known[-_SLICES:], Print(use, now)]


def fingerprint(address: int, count: int) -> int:
    """A sum of some of the bytes, of all where they are few."""
    if count <= _SLICES * _SLICE:
        return zlib.crc32(ctypes.string_at(address, count))
    total, stride = 0, (count - _SLICE) // (_SLICES - 1)
    for at in range(_SLICES):
        total = zlib.crc32(ctypes.string_at(address + at * stride, _SLICE), total)
    return total
