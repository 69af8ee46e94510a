"""New events and rows of files that are still growing, a bounded amount at a time.

Enters: the path of an ``events.jsonl``, ``process.jsonl`` or ``samples.arrow``, again and again. Leaves: each event of
the kinds that are wanted once, and the newest rows; what cannot be read is told in words. ``brickprof.journal.Tail``
reads everything that is new at once, which is right for judging and too long for a screen that opens on a long run.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO

from brickprof.journal import schema
from brickprof.journal.frames import parse_frames
from brickprof.journal.lines import parse_events
from brickprof.records import Event

_KIND = re.compile(rb'\{"seq":\d+,"t":\d+,"kind":"(\w+)"')
MOST_BYTES = 4 * 2**20
"""Read of one file at one look."""
_MOST = 2**63
_MOST_STEPS = 2**53
"""Beyond it a page has no whole numbers."""


class Events:
    """One file of events, and how far it has been read."""

    def __init__(self, path: Path, rank: int, wanted: frozenset[bytes]) -> None:
        self.path = path
        self.rank = rank
        self.at = 0
        self.seen = 0
        """As far as it was looked at: a half line at the end is seen, and waits for its other half."""
        self.size = 0
        self.lost = 0
        """Records that were damaged."""
        self.problem = ""
        self._wanted = wanted
        self._file = 0
        self._last = -1
        self._floor = -1
        """Events up to here were seen before the file was replaced by its compacted self."""

    def poll(self, most: int = MOST_BYTES) -> list[Event]:
        try:
            with self.path.open("rb") as stream:
                data = self._new(stream, most)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problem = error.strerror or str(error)
            return []
        self.problem = ""
        return self._events(data) if data else []

    def _new(self, stream: BinaryIO, most: int) -> bytes:
        status = os.fstat(stream.fileno())
        self.size = status.st_size
        if status.st_ino != self._file or status.st_size < self.at:
            self._file, self.at, self._floor = status.st_ino, 0, self._last
        stream.seek(self.at)
        data = stream.read(most)
        self.seen = self.at + len(data)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == most:  # no line of ours is that long
            whole = data
        self.at += len(whole)
        return whole

    def _events(self, data: bytes) -> list[Event]:
        chosen = [line for line in data.split(b"\n") if line and self._concerns(line)]
        if not chosen:
            return []
        events, damage = parse_events(b"\n".join(chosen), where=self.path.name, rank=self.rank)
        self.lost += damage.records_lost or 0
        new = [event for event in events if sound(event) and event.seq > self._floor]
        self._last = max((event.seq for event in new), default=self._last)
        return new

    def _concerns(self, line: bytes) -> bool:
        kind = _KIND.match(line)
        return kind is None or kind[1] in self._wanted


class Rows:
    """The newest rows of a table that grows. What lies further back than one look reads is skipped."""

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        self._path = path
        self._most = most
        self._file = 0
        self._at = 0
        self._last = 0

    def poll(self) -> Any:
        """An Arrow table, or None when there is nothing new."""
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_ino != self._file or status.st_size < self._at:
                    self._file, self._at = status.st_ino, 0
                if status.st_size == self._at:
                    return None
                self._at = max(self._at, status.st_size - self._most)
                stream.seek(self._at)
                data = stream.read(self._most)
        except OSError:
            return None
        table, self._last, end = parse_frames(data, schema(self._path.stem), self._last)
        self._at += end
        return table


def sound(event: Event) -> bool:
    """Whether its frame is what capture writes: anybody can put a line with the right checksum into a file."""
    numbers = ((event.seq, _MOST), (event.time_ns, _MOST), (event.step, _MOST_STEPS))
    return all(isinstance(value, int) and -most < value < most for value, most in numbers)
