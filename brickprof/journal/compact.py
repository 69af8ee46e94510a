"""Growth, bounded: old healthy history is thinned, what matters is kept.

Enters: a file that has reached its share of the cap. Leaves: a smaller one in its place, and how many records
are gone. The first step, the newest quarter, the steps around an anomaly and every fact that comes once
(bricks, tensors, exceptions, ...) stay. Of the steps between, every second one goes, from the oldest on, then
every second of those left, until it is enough: what remains covers the whole run evenly.

Each function that copies is a generator: the flush thread takes it a few milliseconds at a time, so that
samples go on reaching the disk meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from brickprof.journal.files import APPENDING, EventFile, FrameFile, write_all

PER_STEP = frozenset(
    ("loss", "losses", "grad", "optimizer", "clip", "zero_grad", "schedule", "scaler", "batch", "memory")
)
"""Kinds that come with every step: the first to be thinned."""

ONCE = frozenset(
    (
        "run", "brick", "tensor", "model", "optimizer_created", "hyperparameters", "anomaly", "exception",
        "compile", "note", "probe_off", "dropped", "exit",
    )
)  # fmt: skip
"""Kinds that are never thinned. Those in neither set go when nothing else is left to go."""

NEAR = 4
"""Steps on each side of an anomaly that are kept."""

_CHUNK = 2**20
_LINES = 2000
_HEAD = re.compile(rb'\{"seq":\d+,"t":\d+,"kind":"(\w+)","step":(-?\d+)[,}]')


class Unit(NamedTuple):
    """A stretch of a file that stays or goes as a whole."""

    start: int
    end: int
    records: int
    first_step: int
    last_step: int
    kind: str = ""

    @property
    def size(self) -> int:
        return self.end - self.start


def thinned(
    units: Sequence[Unit],
    target: int,
    anomalies: Collection[int],
    movable: Callable[[str], bool] = lambda kind: True,
) -> set[int]:
    """Which of ``units`` go, so that the rest is at most ``target`` bytes long, if that can be had."""
    total = sum(unit.size for unit in units)
    groups = _groups(units, total // 4, sorted(anomalies), movable)
    gone: set[int] = set()
    spacing = 1
    while total > target and len(groups) > 1:
        spacing *= 2
        kept = groups[:1]
        for group in groups[1:]:
            apart = abs(units[group[0]].first_step - units[kept[-1][0]].first_step)
            if total <= target or apart >= spacing:
                kept.append(group)
            else:
                gone.update(group)
                total -= sum(units[i].size for i in group)
        groups = kept
    return gone


def compact_frames(file: FrameFile, target: int, anomalies: Collection[int]) -> Iterator[int]:
    """Thins ``file``; yields 0 while at work and, at the end, the number of rows dropped."""
    units = [Unit(*frame) for frame in file.frames()]
    gone = thinned(units, target, anomalies)
    if not _worth_it(units, gone):
        return
    kept = [unit for i, unit in enumerate(units) if i not in gone]
    with _Copy(file.path) as copy:
        yield from copy.take([(0, units[0].start), *((unit.start, unit.end) for unit in kept)])
        newer = [Unit(*frame) for frame in file.frames()][len(units) :]
        copy.take_now([(unit.start, unit.end) for unit in newer])
        file.adopt(copy.put_in_place(), units[0].start, [unit[:5] for unit in (*kept, *newer)])
    yield sum(units[i].records for i in gone)


def compact_events(
    file: EventFile, target: int, anomalies: Collection[int], writing: AbstractContextManager[object]
) -> Iterator[int]:
    """Thins ``file``, to which other threads go on appending; yields as ``compact_frames`` does."""
    with writing:
        size = os.fstat(file.descriptor).st_size
    units: list[Unit] = []
    for part in _lines(file.path, size):
        units += part
        yield 0
    gone = thinned(units, target, anomalies, PER_STEP.__contains__)
    if size - sum(units[i].size for i in gone) > target:
        gone = thinned(units, target, anomalies, lambda kind: kind not in ONCE)
    if not _worth_it(units, gone):
        return
    with _Copy(file.path) as copy:
        yield from copy.take((unit.start, unit.end) for i, unit in enumerate(units) if i not in gone)
        with writing:
            copy.take_now([(size, os.fstat(file.descriptor).st_size)])
            file.adopt(copy.put_in_place())
    yield len(gone)


def _groups(
    units: Sequence[Unit], newest: int, anomalies: list[int], movable: Callable[[str], bool]
) -> list[list[int]]:
    """The units that may go, those of one step together, oldest first."""
    groups: dict[tuple[int, int], list[int]] = {}
    recent: set[tuple[int, int]] = set()
    remaining = sum(unit.size for unit in units)
    for i, unit in enumerate(units):
        steps = unit.first_step, unit.last_step
        if remaining <= newest:
            recent.add(steps)
        elif movable(unit.kind) and not _near(steps, anomalies):
            groups.setdefault(steps, []).append(i)
        remaining -= unit.size
    return [group for steps, group in groups.items() if steps not in recent]


def _worth_it(units: Sequence[Unit], gone: set[int]) -> bool:
    # The copy lies beside the file for a moment: it must be clearly smaller for both to fit under the cap.
    return 4 * sum(units[i].size for i in gone) >= sum(unit.size for unit in units)


def _near(steps: tuple[int, int], anomalies: list[int]) -> bool:
    at = bisect_left(anomalies, steps[0] - NEAR)
    return at < len(anomalies) and anomalies[at] <= steps[1] + NEAR


def _lines(path: Path, size: int) -> Iterator[list[Unit]]:
    """The first ``size`` bytes of an event file as units, some lines at a time."""
    part: list[Unit] = []
    at = 0
    with path.open("rb") as stream:
        while at < size and (line := stream.readline()):
            head = _HEAD.match(line)
            step = int(head[2]) if head else 0
            kind = head[1].decode("ascii") if head else "note"  # unreadable: leave it where it is
            part.append(Unit(at, at + len(line), 1, step, step, kind))
            at += len(line)
            if len(part) == _LINES:
                yield part
                part = []
    yield part


class _Copy:
    """The file that will take another's place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.compacting")

    def __enter__(self) -> _Copy:
        self._source = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._target = os.open(self._temporary, APPENDING | os.O_TRUNC, 0o644)
        except OSError:
            os.close(self._source)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._source)
        if self._target >= 0:
            os.close(self._target)
            self._temporary.unlink(missing_ok=True)

    def take(self, ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
        """Copies stretches of the source, neighbours together; yields 0 after each piece."""
        for start, end in _joined(ranges):
            while start < end:
                piece = os.pread(self._source, min(_CHUNK, end - start), start)
                if not piece:
                    raise OSError(errno.EIO, "the journal became shorter")
                write_all(self._target, piece)
                start += len(piece)
                yield 0

    def take_now(self, ranges: Iterable[tuple[int, int]]) -> None:
        for _ in self.take(ranges):
            pass

    def put_in_place(self) -> int:
        """Replaces the source; the descriptor to go on with, so that nothing is left that could fail."""
        os.replace(self._temporary, self._path)
        descriptor, self._target = self._target, -1
        return descriptor


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    first, last = 0, 0
    for start, end in ranges:
        if start != last:
            yield first, last
            first = start
        last = end
    yield first, last
