"""What is new in a run that is still going on.

Enters: the folder of a run, again and again. Leaves: each event once, from every rank and from the launch,
also when a rank appears late, a line is half written or a file was compacted meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from brickprof.journal.frames import parse_frames, schema
from brickprof.journal.layout import EVENTS, PROCESS, PROCESS_RANK, rank_folders
from brickprof.journal.lines import parse_events
from brickprof.records import Event


class Tail:
    def __init__(self, run_folder: Path) -> None:
        self._folder = Path(run_folder)
        self._files: dict[int, _Followed] = {}

    def poll(self) -> list[Event]:
        """The events written since the last call, ordered by time."""
        paths = {rank: folder / EVENTS for rank, folder in rank_folders(self._folder).items()}
        paths[PROCESS_RANK] = self._folder / PROCESS
        new: list[Event] = []
        for rank, path in paths.items():
            followed = self._files.get(rank)
            if followed is None or followed.path != path:  # a rank that was started again writes elsewhere
                followed = self._files[rank] = _Followed(path, rank)
            new += followed.poll()
        new.sort(key=lambda event: event.time_ns)
        return new


class _Followed:
    """One file, and how far it has been read."""

    __slots__ = ("_at", "_file", "_last", "_rank", "path")

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self._rank = rank
        self._file = 0
        self._at = 0
        self._last = -1

    def poll(self) -> list[Event]:
        try:
            with self.path.open("rb") as stream:
                return self._read(stream)
        except OSError:
            return []

    def _read(self, stream: BinaryIO) -> list[Event]:
        status = os.fstat(stream.fileno())
        again = status.st_ino != self._file or status.st_size < self._at
        if again:  # replaced by its compacted self: most of it has been seen
            self._file, self._at = status.st_ino, 0
        stream.seek(self._at)
        data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        events, _ = parse_events(whole, where=self.path.name, rank=self._rank)
        if again:
            events = [event for event in events if event.seq > self._last]
        self._last = max((event.seq for event in events), default=self._last)
        return events


class TableTail:
    """The new rows of a ``samples.arrow`` or ``spans.arrow`` that is still growing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = path.stem
        self._file = 0
        self._at = 0
        self._last = 0

    def poll(self) -> Any:
        """An Arrow table of the rows written since the last call; None when there are none."""
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_ino != self._file or status.st_size < self._at:  # replaced by its compacted self
                    self._file, self._at = status.st_ino, 0
                stream.seek(self._at)
                data = stream.read()
        except OSError:
            return None
        table, self._last, end = parse_frames(data, schema(self._name), self._last)
        self._at += end
        return table
