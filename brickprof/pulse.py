"""The pulse: a small shared page that a training process beats and a supervisor reads.

Enters: the last step, loss, norm, learning rate and the stack of open bricks, a few stores each.
Leaves: the same numbers, readable from another process at any time, also after the writer was killed
(the page is a file mapping, so what was stored is in the page cache, not in the dead process). The numbers carry
a checksum: a page that was damaged, or is just being written, says nothing rather than something wrong.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

NAME = "pulse.bin"
DEPTH = 16
STATES = ("recording", "stopped", "finished")
PHASES = ("idle", "forward", "backward", "optimizer", "loader", "step", "user")

_MAGIC = b"BPPULSE2"
_HEAD = struct.Struct("<8sqqqddddqqq")  # magic, pid, beat_ns, step, loss, norm, lr, overhead, step_ns, closed, state
_CHECK = struct.Struct("<I")
_OPEN = struct.Struct("<qq")  # depth, phase
_SLOT = struct.Struct("<q")
_HEAD_END = _HEAD.size + _CHECK.size
_SIZE = 4096
_OPEN_AT = 256
_SLOT_AT = _OPEN_AT + _OPEN.size
_HALT_AT = _SIZE - 1
"""A supervisor sets this byte: the training is to stop at its next step."""
_TRIES = 3
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Beat:
    pid: int
    beat_ns: int
    step: int
    loss: float
    norm: float
    lr: float
    overhead: float
    step_ns: int
    closed: int
    state: str
    phase: str
    open_bricks: tuple[int, ...]


class Pulse:
    """The writer's side. Every method is a few hundred nanoseconds and allocates nothing lasting."""

    __slots__ = ("_map", "_pid", "closed", "depth", "loss", "lr", "norm", "overhead", "state", "step", "step_ns")

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Real blocks, not a hole: a store into a hole on a full disk would be a SIGBUS in the training.
            os.write(descriptor, bytes(_SIZE))
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._pid = os.getpid()
        self.step, self.step_ns, self.closed, self.depth, self.state = 0, 0, 0, 0, 0
        self.loss = self.norm = self.lr = self.overhead = _NAN
        self.beat(0)

    def beat(self, now_ns: int) -> None:
        """Publishes the numbers; called when a brick closes."""
        self.closed += 1
        head = _HEAD.pack(
            _MAGIC, self._pid, now_ns, self.step,
            self.loss, self.norm, self.lr, self.overhead, self.step_ns, self.closed, self.state,
        )  # fmt: skip
        self._map[:_HEAD_END] = head + _CHECK.pack(crc32(head))

    def enter(self, brick: int, phase: int) -> None:
        if self.depth < DEPTH:
            _SLOT.pack_into(self._map, _SLOT_AT + 8 * self.depth, brick)
        self.depth += 1
        _OPEN.pack_into(self._map, _OPEN_AT, self.depth, phase)

    def leave(self, phase: int) -> None:
        if self.depth:
            self.depth -= 1
        _OPEN.pack_into(self._map, _OPEN_AT, self.depth, phase)

    def mark(self, brick: int) -> None:
        """Names what runs inside the innermost open brick (a block's backward)."""
        if self.depth < DEPTH:
            _SLOT.pack_into(self._map, _SLOT_AT + 8 * self.depth, brick)
            _OPEN.pack_into(self._map, _OPEN_AT, self.depth + 1, PHASES.index("backward"))

    @property
    def asked_to_halt(self) -> bool:
        return self._map[_HALT_AT] == 1

    def close(self) -> None:
        self._map.close()


def ask_to_halt(folder: Path) -> bool:
    """Asks the training that owns ``folder`` to stop before its next step; False when there is none to ask."""
    try:
        descriptor = os.open(folder / NAME, os.O_WRONLY)
        try:
            return os.pwrite(descriptor, b"\x01", _HALT_AT) == 1
        finally:
            os.close(descriptor)
    except OSError:
        return False


def read(folder: Path) -> Beat | None:
    """The last beat of the process that owns ``folder``; None when there is none or it is damaged."""
    page = _whole_page(folder / NAME)
    if page is None:
        return None
    _, pid, beat_ns, step, loss, norm, lr, overhead, step_ns, closed, state = _HEAD.unpack_from(page, 0)
    depth, phase = _OPEN.unpack_from(page, _OPEN_AT)
    depth = max(0, min(depth, DEPTH))
    bricks = tuple(_SLOT.unpack_from(page, _SLOT_AT + 8 * i)[0] for i in range(depth))
    name = PHASES[phase] if 0 <= phase < len(PHASES) else "idle"
    condition = STATES[state] if 0 <= state < len(STATES) else "recording"
    return Beat(pid, beat_ns, step, loss, norm, lr, overhead, step_ns, closed, condition, name, bricks)


def _whole_page(path: Path) -> bytes | None:
    for _ in range(_TRIES):  # the writer may be in the middle of a beat
        try:
            page = path.read_bytes()
        except OSError:
            return None
        if len(page) < _SIZE or page[:8] != _MAGIC:
            return None
        if _CHECK.unpack_from(page, _HEAD.size)[0] == crc32(page[: _HEAD.size]):
            return page
    return None
