"""Exports a run while it goes on: each span once, soon after its step is over.

Enters: the folder of a run, again and again. Leaves: its spans at an OTLP endpoint. What an endpoint did not
take is kept and tried again, up to a limit; beyond it spans are counted as failed, and a later
``export_run`` of the folder brings them, under the same ids.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.errors import BrickprofError
from brickprof.journal import read_meta
from brickprof.telemetry.delivery import ExportResult, deliver, discard
from brickprof.telemetry.export import BATCH
from brickprof.telemetry.follow import Follower

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

BACKLOG = 50_000
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class LiveExporter:
    """``poll()`` now and then, ``close()`` at the end: each ends within ``deadline`` seconds, none raises."""

    def __init__(
        self,
        folder: Path,
        endpoint: str | None = None,
        *,
        protocol: str | None = None,
        exporter: SpanExporter | None = None,
        deadline: float = 5.0,
    ) -> None:
        from brickprof.telemetry.tree import Tree

        self.total = ExportResult()
        self._deadline = deadline
        self._exporter = exporter
        self._ours = exporter is None
        self._where = (endpoint, protocol)
        self._journal = Follower(folder)
        self._tree = Tree(read_meta(folder)[0])
        self._waiting: deque[ReadableSpan] = deque()
        self._pause = 0.0
        self._not_before = 0.0
        self._closed = False

    def poll(self) -> ExportResult:
        """Reads what is new and sends what is over; returns what came of this call."""
        if self._closed:
            return ExportResult()
        self._read()
        self._waiting.extend(self._tree.over())
        return self._send(final=False)

    def close(self) -> ExportResult:
        """Sends all that is left, the run's own span last; returns the total of all calls."""
        if not self._closed:
            self._read()
            self._waiting.extend(self._tree.finish())
            self._send(final=True)
            self._closed = True
            if not self.total.failed:
                self.total = replace(self.total, error="")
        return self.total

    def _read(self) -> None:
        events, spans = self._journal.poll()
        for event in events:
            self._tree.event(event)
        for span in spans:
            self._tree.span(span)

    def _send(self, *, final: bool) -> ExportResult:
        if not self._waiting or (not final and time.monotonic() < self._not_before):
            return self._count(self._trimmed(0 if final else BACKLOG, ""))
        try:
            exporter = self._connected()
        except BrickprofError as error:
            return self._count(self._trimmed(0, str(error)))
        result = deliver(exporter, self._batches(), deadline=self._deadline, close=final and self._ours)
        if result.error and self._ours:
            # Its thread may still hang in it; the next try gets a fresh connection.
            discard(exporter)
            self._exporter = None
        for _ in range(result.spans):
            self._waiting.popleft()
        self._schedule(failed=bool(result.error))
        sent = ExportResult(result.spans, result.batches)
        return self._count(sent + self._trimmed(0 if final else BACKLOG, result.error))

    def _connected(self) -> SpanExporter:
        if self._exporter is None:
            from brickprof.telemetry.exporters import otlp_exporter

            self._exporter = otlp_exporter(*self._where, limit=self._deadline)
        return self._exporter

    def _batches(self) -> Iterator[list[ReadableSpan]]:
        waiting = list(self._waiting)
        return (waiting[at : at + BATCH] for at in range(0, len(waiting), BATCH))

    def _trimmed(self, limit: int, error: str) -> ExportResult:
        """Gives up the oldest spans beyond ``limit``."""
        surplus = max(len(self._waiting) - limit, 0)
        for _ in range(surplus):
            self._waiting.popleft()
        return ExportResult(failed=surplus, error=error)

    def _schedule(self, *, failed: bool) -> None:
        """An endpoint that is down is asked less and less often."""
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE) if failed else 0.0
        self._not_before = time.monotonic() + self._pause

    def _count(self, result: ExportResult) -> ExportResult:
        self.total = self.total + result
        return result
