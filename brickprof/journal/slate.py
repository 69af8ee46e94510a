"""The slate: losses that wait to be written together, where a kill does not reach them.

Enters: the loss of a step whose other facts are not written, a few hundred nanoseconds each. Leaves: the same
losses, readable after the writer was killed: the page is a file mapping, so what was stored lies in the page
cache and not in the dead process. Each entry ends with its own checksum.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from brickprof.journal.damage import Damage
from brickprof.journal.layout import SLATE, shown

_BODY = struct.Struct("<qqdq")
_CHECK = struct.Struct("<I")
_ENTRY = _BODY.size + _CHECK.size
_SIZE = 4096
ROOM = _SIZE // _ENTRY
_BLANK = bytes(_SIZE)


Kept = tuple[int, int, float, int]
"""Step, micro-batch, value, unix nanoseconds."""


class Slate:
    """The writer's side. An OSError of the constructor is the caller's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SLATE
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Real blocks, not a hole: a store into a hole on a full disk would be a SIGBUS in the training.
            os.pwrite(descriptor, _BLANK, 0)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self.kept: list[Kept] = []

    def keep(self, step: int, micro: int, value: float, time_ns: int) -> bool:
        """Stores one loss; False when the slate is full now and wants to be written out."""
        at = _ENTRY * len(self.kept)
        body = _BODY.pack(step, micro, value, time_ns)
        self._map[at : at + _ENTRY] = body + crc32(body).to_bytes(4, "little")
        self.kept.append((step, micro, value, time_ns))
        return len(self.kept) < ROOM

    def keep_all(self, losses: Sequence[Kept]) -> None:
        """Stores several in one go, no more than there is ``room`` for."""
        at, entries = _ENTRY * len(self.kept), bytearray()
        for loss in losses:
            body = _BODY.pack(*loss)
            entries += body
            entries += crc32(body).to_bytes(4, "little")
        self._map[at : at + len(entries)] = entries
        self.kept += losses

    @property
    def room(self) -> int:
        """How many losses there is still room for."""
        return ROOM - len(self.kept)

    def wipe(self) -> None:
        """What stood here is written elsewhere now."""
        self._map[: _ENTRY * len(self.kept)] = bytes(_ENTRY * len(self.kept))
        self.kept = []

    def close(self) -> None:
        self._map.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def read_slate(folder: Path) -> tuple[list[Kept], Damage]:
    """The losses that a killed writer left, in the order stored. No slate is an empty one."""
    path = Path(folder) / SLATE
    try:
        page = path.read_bytes()[:_SIZE]
    except OSError:
        return [], Damage(shown(path))
    found: list[Kept] = []
    lost = 0
    for at in range(0, len(page), _ENTRY):
        entry = page[at : at + _ENTRY]
        if not any(entry):
            continue
        if len(entry) == _ENTRY and _CHECK.unpack_from(entry, _BODY.size)[0] == crc32(entry[: _BODY.size]):
            step, micro, value, time_ns = _BODY.unpack_from(entry)
            found.append((step, micro, value, time_ns))
        else:
            lost += 1
    if len(page) < _SIZE:  # cut off: nobody knows how many entries stood there
        return found, Damage(shown(path), _SIZE - len(page), None, "the slate is cut off")
    return found, Damage(shown(path), lost * _ENTRY, lost, "torn by a kill, or damaged since" if lost else "")
