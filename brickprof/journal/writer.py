"""The writer of one rank: events at once, spans and samples a few times a second.

Enters: events (dicts), spans and samples (tuples in column order). Leaves: ``events.jsonl``, ``spans.arrow``
and ``samples.arrow`` of a rank's folder, whole up to the moment the process dies.

                       event() ── encode ── os.write ──────────────────> events.jsonl
    training threads   span()  ── list.append ──┐
                       sample() ─ list.append ──┴─ flush thread, 50 ms ─> spans.arrow, samples.arrow

Nothing here raises into the training. When the disk is full, or the process was forked, the journal goes
silent: ``alive`` is False and ``stopped`` says why.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brickprof.bricks import Brick
from brickprof.journal.files import EventFile, FrameFile, Row
from brickprof.journal.frames import MOST_ROWS, STEP_COLUMN
from brickprof.journal.layout import EVENTS, SAMPLES, SPANS

_REASONS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota reached",
    errno.EFBIG: "file size limit reached",
}
_PATIENCE = 5.0
"""Seconds that close() waits for a disk that does not answer."""


class Journal:
    """One per rank folder. Only the constructor raises (OSError, when the folder cannot be written)."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 256 * 2**20,
        flush_seconds: float = 0.05,
        first_seq: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.alive = True
        self.stopped = ""
        self.dropped = {"events": 0, "spans": 0, "samples": 0}
        self._events = EventFile(self.folder / EVENTS, first_seq)
        self._spans = FrameFile(self.folder / SPANS, "spans")
        self._samples = FrameFile(self.folder / SAMPLES, "samples")
        self._span_rows: list[Row] = []
        self._sample_rows: list[Row] = []
        self._bricks: dict[Brick, int] = {}
        self._tensors: dict[tuple[Any, str], int] = {}
        self._step = 0
        # Reentrant: a signal handler may write an event while its own thread is writing one.
        self._writing = threading.RLock()
        self._flushing = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = threading.Thread(
            target=_flush_until_closed,
            args=(weakref.ref(self), self._wake, flush_seconds),
            name="brickprof-journal",
            daemon=True,
        )
        _open_journals.add(self)
        self._thread.start()

    def event(self, kind: str, step: int, fields: dict[str, Any]) -> int:
        """Writes one event at once; its seq, or -1 when it was not written."""
        if not self.alive:
            return -1
        try:
            with self._writing:
                self._step = step
                return self._events.append(kind, step, fields)
        except OSError as error:
            self._stop(error)
        except Exception:
            self.dropped["events"] += 1
        return -1

    def span(self, row: Row) -> None:
        """Keeps one span, in column order, for the next flush."""
        self._span_rows.append(row)

    def sample(self, row: Row) -> None:
        """Keeps one sample, in column order, for the next flush."""
        self._sample_rows.append(row)

    def brick(self, brick: Brick) -> int:
        """The number of ``brick`` in this journal, from 1."""
        return self._bricks.get(brick) or self._intern(
            self._bricks, brick, "brick", {"brick_kind": brick.kind, "path": brick.path, "model": brick.model}
        )

    def tensor(self, name: str, fields: dict[str, Any]) -> int:
        """The number of the tensor ``name`` of ``fields["model"]`` in this journal, from 1."""
        key = (fields.get("model"), name)
        return self._tensors.get(key) or self._intern(self._tensors, key, "tensor", {"name": name, **fields})

    def warm(self) -> None:
        """Imports pyarrow now (a tenth of a second) rather than at the first flush."""
        with contextlib.suppress(ImportError):
            import pyarrow  # noqa: F401

    def flush(self) -> None:
        """Writes the spans and samples kept so far."""
        with self._flushing:
            self._drain(self._spans, self._span_rows)
            self._drain(self._samples, self._sample_rows)

    def close(self) -> None:
        """Writes what is left and lets go of the files. The journal is silent afterwards."""
        if not self._rest():
            return
        self.alive = False
        with self._writing, self._flushing:
            for file in (self._events, self._spans, self._samples):
                with contextlib.suppress(OSError):
                    file.close()

    def _intern(self, known: dict[Any, int], key: Any, kind: str, fields: dict[str, Any]) -> int:
        with self._writing:
            number = known.get(key) or len(known) + 1
            if key not in known:
                self.event(kind, self._step, {"id": number, **fields})
                known[key] = number
            return number

    def _drain(self, file: FrameFile, rows: list[Row]) -> None:
        count = len(rows)  # the training may append meanwhile: only these are taken
        if not count:
            return
        taken = rows[:count]
        del rows[:count]
        written = 0
        try:
            for part in _cut(taken, STEP_COLUMN[file.name]):
                for frame in file.framed(part) if self.alive else ():
                    file.append(frame)
                    written += frame.rows
        except OSError as error:
            self._stop(error)
        except Exception:
            pass  # counted below, with everything else that was not written
        self.dropped[file.name] += count - written

    def _rest(self) -> bool:
        """Ends the flush thread and flushes; False when this journal has nothing to end."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._wake.set()
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
        if self._flushing.acquire(timeout=_PATIENCE):
            try:
                self.flush()
            finally:
                self._flushing.release()
        return True

    def _stop(self, error: OSError) -> None:
        self.alive = False
        self.stopped = self.stopped or _REASONS.get(error.errno or 0, error.strerror or str(error))

    def _fall_silent(self) -> None:
        """In a forked child: the files are the parent's, the locks may be held by threads that are gone."""
        self.alive = False
        self.stopped = "forked"
        self._thread = None
        self._span_rows.clear()
        self._sample_rows.clear()


def _cut(rows: list[Row], column: int) -> Iterator[list[Row]]:
    """``rows`` in parts: the first step, the last step and what is between, so that a step that spreads
    over two flushes never shares a frame with its neighbours, and old steps can be dropped whole."""
    first, last = 0, len(rows)
    while first < last and rows[first][column] == rows[0][column]:
        first += 1
    while last > first and rows[last - 1][column] == rows[-1][column]:
        last -= 1
    for start, end in ((0, first), (first, last), (last, len(rows))):
        for at in range(start, end, MOST_ROWS):
            yield rows[at : min(at + MOST_ROWS, end)]


def _flush_until_closed(
    reference: weakref.ref[Journal], wake: threading.Event, seconds: float
) -> None:
    while not wake.wait(seconds):
        journal = reference()
        if journal is None:
            return
        journal.flush()
        del journal


_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _silence_child() -> None:
    for journal in list(_open_journals):
        journal._fall_silent()


@atexit.register
def _rest_all() -> None:
    # A daemon thread that is inside pyarrow when the interpreter goes away takes the process down with it.
    for journal in list(_open_journals):
        journal._rest()


os.register_at_fork(after_in_child=_silence_child)
