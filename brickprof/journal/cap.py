"""The size cap of one rank's journal: who may still write, and when a file is thinned.

Enters: the files and the most bytes they may take together. Leaves: yes or no to a write, and a running
compaction that is carried on a few milliseconds at a time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager

from brickprof.journal.compact import ONCE, compact_events, compact_frames
from brickprof.journal.files import EventFile, FrameFile

# A compacted copy (at most three quarters of the longest file) lies beside the original for a moment, so the
# files themselves get two thirds of the cap; the slack above is for what arrives while one is thinned.
_SHARE = {"events": 0.204, "spans": 0.204, "samples": 0.272}
_SLACK = {"events": 0.05, "spans": 0.01, "samples": 0.01}
_RESERVE = 0.02
_TARGET = 0.6
_RETRY_SECONDS = 5.0

LAST_WORDS = frozenset(("exception", "exit", "dropped"))


class SizeCap:
    def __init__(
        self,
        max_bytes: int,
        events: EventFile,
        spans: FrameFile,
        samples: FrameFile,
        writing: AbstractContextManager[object],
    ) -> None:
        self._files: dict[str, EventFile | FrameFile] = {"events": events, "spans": spans, "samples": samples}
        self._soft = {name: int(share * max_bytes) for name, share in _SHARE.items()}
        self._hard = {name: self._soft[name] + int(_SLACK[name] * max_bytes) for name in _SHARE}
        self._events = events
        self._events_hard = self._hard["events"]
        self._reserve = int(_RESERVE * max_bytes)
        self._writing = writing
        self._running: tuple[str, Iterator[int]] | None = None
        self._not_before = dict.fromkeys(_SHARE, 0.0)

    def refuses(self, kind: str) -> bool:
        """Whether an event finds no room: those of every step first, last words never."""
        size = self._events.size
        if size < self._events_hard or kind in LAST_WORDS:
            return False
        return kind not in ONCE or size >= self._events_hard + self._reserve

    def fits(self, file: FrameFile, size: int) -> bool:
        return file.size + size <= self._hard[file.name]

    @property
    def busy(self) -> bool:
        """Whether a file is being thinned and there is more to do."""
        return self._running is not None

    def compact(
        self, anomalies: Collection[int], seconds: float | None = None, coming: tuple[str, int] = ("", 0)
    ) -> dict[str, int]:
        """Thins what is too long, for ``seconds`` or to the end; the records dropped, by file. ``coming``: so many
        bytes are to be written to that file, whose slack may be shorter than that."""
        dropped: dict[str, int] = {}
        until = None if seconds is None else time.monotonic() + seconds
        while (self._running or self._start(anomalies, *coming)) and (until is None or time.monotonic() < until):
            name, records = self._advance()
            if records:
                dropped[name] = dropped.get(name, 0) + records
        return dropped

    def _start(self, anomalies: Collection[int], awaited: str, size: int) -> bool:
        now = time.monotonic()
        for name, file in self._files.items():
            too_long = file.size > self._soft[name] or (name == awaited and file.size + size > self._hard[name])
            if too_long and now >= self._not_before[name]:
                target = int(_TARGET * self._soft[name])
                if isinstance(file, EventFile):
                    work = compact_events(file, target, frozenset(anomalies), self._writing)
                else:
                    work = compact_frames(file, target, frozenset(anomalies))
                self._running = name, work
                # Should it free nothing, another try at once would free nothing either.
                self._not_before[name] = now + _RETRY_SECONDS
                return True
        return False

    def _advance(self) -> tuple[str, int]:
        if self._running is None:
            return "", 0
        name, work = self._running
        try:
            records = next(work)
        except (StopIteration, OSError):
            self._running = None
            return name, 0
        if records:
            self._not_before[name] = 0.0
        return name, records
