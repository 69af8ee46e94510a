"""The writer of one rank: events at once, spans and samples a few times a second.

Enters: events (dicts), spans and samples (tuples in column order). Leaves: ``events.jsonl``, ``spans.arrow``
and ``samples.arrow`` of a rank's folder, whole up to the moment the process dies; losses of very short steps
lie on the slate (a file mapping) until they are written together.

                       event() ── encode ── os.write ──────────────────> events.jsonl
                       loss()  ── store ── slate.bin ─ 400 ms, as one ──> events.jsonl
    training threads   sample() ─ list.append ──── flush thread, 40 ms ──> samples.arrow
                       sheet() ── list.append ──── flush thread, 2 s ────> samples.arrow
                       span()  ── list.append ──── flush thread, 400 ms ─> spans.arrow

Spans wait longer than samples: a step of a second has its few spans far apart, and a frame of one row takes
the thread as long as a frame of fifty. So do sheets, which come a few times a second for as long as all is well. On a
machine whose cores all train, and wherever the training waits for its interpreter, that time is the training's, so
the thread sleeps until a first sample comes or spans are due. ``written_ns`` is what it has used.

Nothing here raises into the training. When the disk is full, or the process was forked, the journal goes
silent: ``alive`` is False and ``stopped`` says why.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from brickprof.bricks import Brick
from brickprof.journal.cap import SizeCap
from brickprof.journal.files import EventFile, FrameFile, Row
from brickprof.journal.frames import ENOUGH_ROWS, MOST_ROWS, STEP_COLUMN, rehearse
from brickprof.journal.layout import EVENTS, SAMPLES, SPANS
from brickprof.journal.sheets import Sheet, together
from brickprof.journal.slate import ROOM, Kept, Slate, read_slate

_REASONS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota reached",
    errno.EFBIG: "file size limit reached",
}
NOTABLE = frozenset(("anomaly", "exception", "activation", "weight"))
"""Kinds whose steps are worth keeping, with those around them, however old."""
_MOST_ANOMALIES = 32

_TOGETHER_NS = 400_000_000  # losses are kept together for no longer than this
_SPANS_WAIT = 10  # times as long as samples
_SHEETS_WAIT = 50
_MOST_SHEETS = 64
_PATIENCE = 5.0  # seconds that close() waits for a disk that does not answer
_SLICE = 0.01  # seconds of thinning between two flushes
_REPORT_SECONDS = 10.0
_IN_A_LINE = 64
"""Losses: a longer line is encoded in a longer way."""
_NOT_WRITTEN = "the size cap was reached, or a value fits no column"


class Journal:
    """One per rank folder. Only the constructor raises (OSError, when the folder cannot be written)."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 256 * 2**20,
        flush_seconds: float = 0.04,
        first_seq: int = 0,
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.alive = True
        self._as_of = self._dated_by = 0
        self.stopped = ""
        self.dropped = {"events": 0, "spans": 0, "samples": 0}
        self._events = EventFile(self.folder / EVENTS, first_seq)
        left, _ = read_slate(self.folder)  # by a writer that was killed here
        self._slate = Slate(self.folder)
        self._spans = FrameFile(self.folder / SPANS, "spans")
        self._samples = FrameFile(self.folder / SAMPLES, "samples")
        self._span_rows: list[Row] = []
        self._sample_rows: list[Row] = []
        self._sheets: list[Sheet] = []
        self._sheets_due = 0.0
        self._used_ns = self._took_ns = 0
        """CPU time of the flush thread at its work, and time of the clock."""
        self._bricks: dict[Brick, int] = {}
        self._tensors: dict[tuple[Any, str], int] = {}
        self._step = 0
        self._anomalies: set[int] = set()
        self._reported = dict(self.dropped)
        self._report_at = 0.0
        # Reentrant: a signal handler may write an event while its own thread is writing one.
        self._writing = threading.RLock()
        self._flushing = threading.RLock()
        self._cap = SizeCap(max_bytes, self._events, self._spans, self._samples, self._writing)
        self._write_losses(left)
        self._sheets_wait = flush_seconds * _SHEETS_WAIT
        self._bell = _Bell()
        self._thread: threading.Thread | None = threading.Thread(
            target=_flush_until_closed,
            args=(weakref.ref(self), self._bell, flush_seconds),
            name="brickprof-journal",
            daemon=True,
        )
        _open_journals.add(self)
        try:
            self._thread.start()
        except RuntimeError:  # no threads to be had: flush() and close() still write everything
            self._thread = None

    def event(self, kind: str, step: int, fields: dict[str, Any]) -> int:
        """Writes one event at once; its seq, or -1 when it was not written."""
        if not self.alive:
            return -1
        try:
            with self._writing:
                if self._cap.refuses(kind):
                    self.dropped["events"] += 1
                    return -1
                if kind in NOTABLE and len(self._anomalies) < _MOST_ANOMALIES:
                    self._anomalies.add(step)
                self._step = step
                late = self._as_of and threading.get_ident() == self._dated_by
                return self._events.append(kind, step, fields, self._as_of if late else 0)
        except OSError as error:
            self._stop(error)
        except Exception:
            self.dropped["events"] += 1
        return -1

    def date(self, time_ns: int) -> None:
        """Until further notice, this thread's events are of ``time_ns``: they happened then. 0 ends that."""
        self._as_of, self._dated_by = time_ns, threading.get_ident()

    def loss(self, step: int, micro: int, value: float, time_ns: int) -> None:
        """Keeps one bare loss, safe from a kill, and writes those of the last 400 ms as one event."""
        if not self.alive:
            return
        try:
            slate = self._slate
            if not slate.keep(step, micro, value, time_ns) or time_ns - slate.kept[0][3] > _TOGETHER_NS:
                self.tell_losses()
        except Exception:
            self.dropped["events"] += 1

    def losses(self, losses: Sequence[Kept]) -> None:
        """The same for several at once, in the order of their time."""
        if not self.alive or not losses:
            return
        try:
            slate = self._slate
            if losses[-1][3] - losses[0][3] > _TOGETHER_NS:  # more than wait there: written at once
                self.tell_losses()
                self._write_losses(losses)
                return
            if len(losses) > slate.room:
                self.tell_losses()
            for at in range(0, len(losses), ROOM):
                part = losses[at : at + ROOM]
                slate.keep_all(part)
                if not slate.room or part[-1][3] - slate.kept[0][3] > _TOGETHER_NS:
                    self.tell_losses()
        except Exception:
            self.dropped["events"] += 1

    def tell_losses(self) -> None:
        """Writes the losses kept so far; what comes after them stands after them in the file too."""
        if self._slate.kept:
            self._write_losses(self._slate.kept)
            self._slate.wipe()

    def _write_losses(self, kept: Sequence[Kept]) -> None:
        for at in range(0, len(kept), _IN_A_LINE):
            steps, micros, values, times = map(list, zip(*kept[at : at + _IN_A_LINE], strict=True))
            self.event("losses", steps[-1], {"steps": steps, "micros": micros, "values": values, "times": times})

    def span(self, row: Row) -> None:
        """Keeps one span, in column order, for the next flush."""
        self._span_rows.append(row)

    def sample(self, row: Row) -> None:
        """Keeps one sample, in column order, for the next flush."""
        self._sample_rows.append(row)
        if len(self._sample_rows) == 1:
            self._bell.ring()

    def sheet(self, sheet: Sheet, *, at_once: bool = False) -> None:
        """Keeps all samples of one look until there are several, or writes them with the next flush, ``at_once``."""
        if not self._sheets:
            self._sheets_due = time.monotonic() + self._sheets_wait
        self._sheets.append(sheet)
        if at_once or len(self._sheets) == _MOST_SHEETS:
            self._sheets_due = 0.0
            self._bell.ring()

    @property
    def bricks(self) -> Mapping[Brick, int]:
        """All bricks so far, with their numbers."""
        return self._bricks

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
        """Does now what the first flush would do else: import pyarrow, which takes a tenth of a second, and whatever
        that loads in turn when it is first used."""
        with contextlib.suppress(Exception):
            rehearse()

    def flush(self, *, all_sheets: bool = True) -> None:
        """Writes the spans and samples kept so far."""
        with self._flushing:
            self._drain(self._spans, self._span_rows)
            self._drain(self._samples, self._sample_rows)
            if all_sheets or time.monotonic() >= self._sheets_due:
                self._drain_sheets()

    @property
    def written_ns(self) -> int:
        """CPU time that the flush thread has used. Where threads are billed by ticks of 10 ms, each moment of work may
        be billed one: no more than the time that passed meanwhile is believed."""
        return min(self._used_ns, self._took_ns)

    def close(self) -> None:
        """Writes what is left and lets go of the files. The journal is silent afterwards."""
        if not self._rest():
            if not self.alive:
                return
            self.flush()  # at the end of the interpreter: the thread rests already, and this came after
        with contextlib.suppress(Exception):
            self.tell_losses()
        self.alive = False
        with self._writing, self._flushing:
            for file in (self._events, self._spans, self._samples, self._slate):
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
        waiting = len(rows)  # the training may append meanwhile: only these are taken
        if not waiting:
            return
        taken = rows[:waiting]
        del rows[:waiting]
        self._write(file, _cut(taken, STEP_COLUMN[file.name]), waiting)

    def _drain_sheets(self) -> None:
        self._sheets_due = time.monotonic() + self._sheets_wait  # of those that come meanwhile
        waiting = len(self._sheets)
        if not waiting:
            return
        taken = self._sheets[:waiting]
        del self._sheets[:waiting]
        self._write(self._samples, together(taken, MOST_ROWS), sum(map(len, taken)))

    def _write(self, file: FrameFile, parts: Iterator[list[Row]] | Iterator[list[Sheet]], count: int) -> None:
        written = 0
        try:
            for part in parts:
                for frame in file.framed(part) if self.alive else ():
                    if self._makes_room(file, len(frame.data)):
                        file.append(frame)
                        written += frame.rows
        except OSError as error:
            self._stop(error)
        except Exception:
            pass  # counted below, with everything else that was not written
        self.dropped[file.name] += count - written

    def _makes_room(self, file: FrameFile, size: int) -> bool:
        if not self._cap.fits(file, size):
            self._count(self._cap.compact(self._anomalies, coming=(file.name, size)))
        return self._cap.fits(file, size)

    def _tick(self) -> None:
        """What the flush thread does: flush, then some milliseconds of thinning if a file is too long."""
        with self._flushing:
            self.flush(all_sheets=False)
            if self.alive:
                self._count(self._cap.compact(self._anomalies, seconds=_SLICE))
                if time.monotonic() > self._report_at:
                    self._report_dropped(_NOT_WRITTEN)

    def _count(self, thinned: dict[str, int]) -> None:
        for name, records in thinned.items():
            self.dropped[name] += records
        if thinned:
            self._report_dropped("old history thinned to stay under the size cap")

    def _report_dropped(self, reason: str) -> None:
        self._report_at = time.monotonic() + _REPORT_SECONDS
        new = {name: count - self._reported[name] for name, count in self.dropped.items()}
        if any(new.values()):
            self._reported = dict(self.dropped)
            self.event("dropped", self._step, {**new, "reason": reason})

    def _rest(self) -> bool:
        """Ends the flush thread and flushes; False when this journal has nothing to end."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._bell.end()
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
        if self._flushing.acquire(timeout=_PATIENCE):
            try:
                self.flush()
                self._report_dropped(_NOT_WRITTEN)
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
        self._sheets.clear()


def _cut(rows: list[Row], column: int) -> Iterator[list[Row]]:
    """``rows`` in parts that end where a step ends, so that old steps can be dropped whole. The first and
    the last step stand alone: the flush before or after may hold more of them."""
    steps = [list(run) for _, run in groupby(rows, key=itemgetter(column))]
    part: list[Row] = []
    for i, step in enumerate(steps):
        part += step
        if len(part) >= ENOUGH_ROWS or i == 0 or i >= len(steps) - 2:
            for at in range(0, len(part), MOST_ROWS):
                yield part[at : at + MOST_ROWS]
            part = []


class _Bell:
    """What wakes the flush thread before its time: a first sample, or the end."""

    def __init__(self) -> None:
        self.ended = False
        self._silent = threading.Lock()  # a bare one: waiting for an Event makes a lock each time
        self._silent.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silent.release()

    def end(self) -> None:
        self.ended = True
        self.ring()

    def wait(self, seconds: float) -> None:
        self._silent.acquire(timeout=seconds)


def _flush_until_closed(reference: weakref.ref[Journal], bell: _Bell, seconds: float) -> None:
    pause = seconds * _SPANS_WAIT
    while True:
        bell.wait(pause)
        journal = reference()
        if journal is not None and journal._sample_rows:
            del journal
            bell.wait(seconds)  # whatever comes with that first sample
            journal = reference()
        if bell.ended or journal is None:
            return
        began, at = time.thread_time_ns(), time.perf_counter_ns()
        try:
            journal._tick()
        except Exception:
            pass  # out of memory, say: nobody's terminal is ours, and the next tick tries again
        journal._used_ns += time.thread_time_ns() - began
        journal._took_ns += time.perf_counter_ns() - at
        pause = seconds if journal._cap.busy else seconds * _SPANS_WAIT
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
