"""A training that stands still: noticed, looked at once, and left alone.

Enters: the pulse of every rank, about once a second. Leaves: after T seconds in which no brick of some
rank closed, a ``Hang`` with the bricks that are open and the Python stacks of every rank. The next one
only after it moved again.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brickprof import pulse
from brickprof.capture.boot import DUMP_SIGNAL, stacks_name
from brickprof.journal.layout import EVENTS, rank_folder, rank_folders
from brickprof.launch import processes
from brickprof.launch.stacks import threads

_DUMP_SECONDS = 1.0
_MOST_TEXT = 200_000
_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_STOPPED_STATES = "TtZX"


@dataclass(slots=True)
class _Seen:
    closed: int
    since: float
    cpu: float
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    seconds: float
    step: int
    ranks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where the first stalled rank stands: the innermost open brick, else its phase, if it is in one."""
        rank = self._first
        if rank["open_bricks"]:
            return str(rank["open_bricks"][-1])
        return "" if rank["phase"] == "idle" else str(rank["phase"])

    @property
    def frame(self) -> str:
        """The line of Python that its main thread is in: ``train.py:12 in save``."""
        main = self._first["stacks"][-1] if self._first["stacks"] else ""
        found = _FRAME.search(main)
        return f"{os.path.basename(found['file'])}:{found['line']} in {found['name']}" if found else ""

    @property
    def _first(self) -> dict[str, Any]:
        return next(rank for rank in self.ranks if rank["stalled"])


class HangWatch:
    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self._seen: dict[int, _Seen] = {}

    def tick(self, now: float) -> Hang | None:
        """The hang that has just become one, if any."""
        if not self.seconds:
            return None
        beats = {rank: pulse.read(path) for rank, path in rank_folders(self.folder).items()}
        training = {rank: beat for rank, beat in beats.items() if beat is not None and self._trains(beat)}
        stalled = [rank for rank, beat in training.items() if self._stalled(rank, beat, now)]
        fresh = [rank for rank in stalled if not self._seen[rank].reported]
        if not fresh:
            return None
        for rank in stalled:
            self._seen[rank].reported = True
        longest = max(now - self._seen[rank].since for rank in fresh)
        step = max(training[rank].step for rank in fresh)
        looks = [self._look(rank, beat, rank in stalled) for rank, beat in training.items()]
        return Hang(longest, step, looks)

    def forgive(self, now: float) -> None:
        """Time in which the whole job was stopped (Ctrl-Z) counts for nobody."""
        for seen in self._seen.values():
            seen.since = now

    def _trains(self, beat: pulse.Beat) -> bool:
        return beat.state == "recording" and beat.closed > 1 and processes.belongs(beat.pid, self.folder)

    def _stalled(self, rank: int, beat: pulse.Beat, now: float) -> bool:
        seen = self._seen.get(rank)
        stat = processes.stat(beat.pid)
        if stat is None or seen is None or seen.closed != beat.closed or stat.state in _STOPPED_STATES:
            self._seen[rank] = _Seen(beat.closed, now, stat.cpu_seconds if stat else 0.0)
            return False
        return now - seen.since >= self.seconds

    def _look(self, rank: int, beat: pulse.Beat, stalled: bool) -> dict[str, Any]:
        names = _brick_names(self.folder, rank) if beat.open_bricks else {}
        stat = processes.stat(beat.pid)
        return {
            "rank": rank,
            "pid": beat.pid,
            "stalled": stalled,
            "step": beat.step,
            "phase": beat.phase,
            "open_bricks": [names.get(brick, f"brick {brick}") for brick in beat.open_bricks],
            "cpu_seconds": round(stat.cpu_seconds - self._seen[rank].cpu, 2) if stat else None,
            "state": stat.state if stat else "",
            "stacks": dump(self.folder, beat.pid),
        }


def dump(folder: Path, pid: int) -> list[str]:
    """The stacks of a process now, one text a thread; empty when it does not listen."""
    path = folder / stacks_name(pid)
    if not DUMP_SIGNAL or not processes.handles(pid, DUMP_SIGNAL):
        return []
    before = _size(path)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, DUMP_SIGNAL)
    _wait_until_written(path, before)
    with suppress(OSError), path.open("rb") as stream:
        stream.seek(before)
        return threads(stream.read(_MOST_TEXT).decode("utf-8", "replace"))
    return []


def _wait_until_written(path: Path, before: int) -> None:
    """faulthandler writes a line at a time: done is when it grew and then stopped growing."""
    last, until = before, time.monotonic() + _DUMP_SECONDS
    while time.monotonic() < until:
        time.sleep(0.05)
        size = _size(path)
        if size == last and size > before:
            return
        last = size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _brick_names(folder: Path, rank: int) -> dict[int, str]:
    from brickprof.journal.lines import decode

    names: dict[int, str] = {}
    with suppress(OSError), (rank_folder(folder, rank) / EVENTS).open("rb") as stream:
        for line in stream:
            if b'"kind":"brick"' in line:
                event = decode(line.rstrip(b"\n"), rank)
                if event is not None:
                    names[event.fields["id"]] = event.fields["path"] or event.fields["model"]
    return names
