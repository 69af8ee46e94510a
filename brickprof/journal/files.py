"""The two kinds of file that a journal appends to.

Enters: one event, or the rows of one flush. Leaves: one ``os.write`` to a file opened for appending. Errors
of the system pass through: the journal decides what they mean.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from brickprof.clock import now
from brickprof.journal import frames, lines
from brickprof.journal.frames import Sealed
from brickprof.journal.sheets import Sheet

APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC

Row = tuple[Any, ...]


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of ``data``, in one call unless the system takes less."""
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, data[done:])


class EventFile:
    """``events.jsonl``. Continues where an earlier writer stopped."""

    def __init__(self, path: Path, first_seq: int = 0) -> None:
        self.path = path
        self.descriptor = os.open(path, APPENDING, 0o644)
        self.size = os.fstat(self.descriptor).st_size
        # A counter that a signal handler cannot catch between reading and writing it.
        self._seqs = count(max(first_seq, self._resume()) if self.size else first_seq)

    def append(self, kind: str, step: int, fields: dict[str, Any], time_ns: int = 0) -> int:
        seq = next(self._seqs)
        line = lines.encode(seq, time_ns or now(), kind, step, fields)
        done = os.write(self.descriptor, line)
        if done != len(line):
            write_all(self.descriptor, line[done:])
        self.size += len(line)
        return seq

    def adopt(self, descriptor: int) -> None:
        """Goes on in the file that took this one's place."""
        old, self.descriptor = self.descriptor, descriptor
        self.size = os.fstat(descriptor).st_size
        os.close(old)

    def close(self) -> None:
        os.close(self.descriptor)

    def _resume(self) -> int:
        """Ends a torn last line; the first seq that is free."""
        events, _ = lines.read_events(self.path)
        with self.path.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            torn = stream.read() != b"\n"
        if torn:
            write_all(self.descriptor, b"\n")
            self.size += 1
        return max((event.seq + 1 for event in events), default=0)


class FrameFile:
    """``spans.arrow`` or ``samples.arrow``; made when there is something to put into it.

    ``index`` remembers start, end, rows, first and last step of every frame, five numbers each, so
    that old ones can be thinned without being read.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.size = 0
        self.index = array("q")
        self._seq = 1
        self._descriptor = -1
        if path.exists():
            self._resume()

    def framed(self, rows: Sequence[Row] | Sequence[Sheet]) -> Iterator[Sealed]:
        """Frames that hold ``rows``, or the rows of sheets, less those that no column would take."""
        try:
            made = frames.sheets_frame if isinstance(rows[0], Sheet) else frames.batch_frame
            frame = made(self.name, rows, self._seq)  # type: ignore[arg-type]
        except Exception:  # one bad value must not cost its neighbours
            if len(rows) > 1:
                middle = len(rows) // 2
                yield from self.framed(rows[:middle])
                yield from self.framed(rows[middle:])
            return
        self._seq += 1
        yield frame

    def append(self, frame: Sealed) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, APPENDING, 0o644)
        opening = b"" if self.size else frames.schema_frame(self.name)
        write_all(self._descriptor, opening + frame.data)
        start = self.size + len(opening)
        self.size = start + len(frame.data)
        self.index.extend((start, self.size, *frame[1:]))

    def frames(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Start, end, rows, first and last step of every frame in the file."""
        numbers = iter(self.index)
        return zip(numbers, numbers, numbers, numbers, numbers, strict=True)

    def adopt(self, descriptor: int, opening: int, kept: Iterable[tuple[int, ...]]) -> None:
        """Goes on in the file that took this one's place and holds only the frames ``kept``."""
        self.close()
        self._descriptor = descriptor
        self.index = array("q")
        self.size = opening
        for start, end, *rest in kept:
            self.index.extend((self.size, self.size + end - start, *rest))
            self.size += end - start

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _resume(self) -> None:
        for frame in frames.frames(self.path.read_bytes()):
            self.size = frame.end
            if frame.seq:
                self.index.extend((frame.start, frame.end, frame.rows, frame.first_step, frame.last_step))
                self._seq = max(self._seq, frame.seq + 1)
        os.truncate(self.path, self.size)
