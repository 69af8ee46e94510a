"""Hands batches of spans to an exporter, in bounded time, quietly.

Enters: a ``SpanExporter`` of OpenTelemetry's SDK and batches of spans. Leaves: an ``ExportResult`` that says
how much arrived. The exporter runs in a thread of its own, because the SDK's time limits are per request,
retries included, and a server that dribbles its answer can outlast them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brickprof.text import clean

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_LOGGERS = ("opentelemetry", "urllib3", "grpc")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What came of an export: how many spans arrived in how many batches, and why the others did not."""

    spans: int = 0
    batches: int = 0
    failed: int = 0
    error: str = ""

    @property
    def complete(self) -> bool:
        return not self.error and not self.failed

    def __add__(self, other: ExportResult) -> ExportResult:
        return ExportResult(
            self.spans + other.spans,
            self.batches + other.batches,
            self.failed + other.failed,
            other.error or self.error,
        )


def deliver(
    exporter: SpanExporter,
    batches: Iterable[Sequence[ReadableSpan]],
    *,
    deadline: float | None,
    close: bool = False,
) -> ExportResult:
    """Exports ``batches`` until one fails or ``deadline`` seconds are over; never raises.

    ``failed`` counts the spans of the batch that was under way; what was not begun is the caller's to count.
    ``close`` shuts the exporter down at the end, for one that nobody else uses.
    """
    sender = _Sender(exporter, batches, close=close)
    sender.start()
    sender.join(deadline)
    if sender.is_alive():
        sender.abandoned.set()
        if close:
            discard(exporter)
        return sender.result(f"no answer within {deadline:g} s")
    return sender.result()


class _Sender(threading.Thread):
    def __init__(self, exporter: SpanExporter, batches: Iterable[Sequence[ReadableSpan]], *, close: bool) -> None:
        super().__init__(name="brickprof-telemetry", daemon=True)
        self.abandoned = threading.Event()
        self._exporter = exporter
        self._batches = batches
        self._close = close
        self._sent = self._done = self._under_way = 0
        self._error = ""

    def run(self) -> None:
        # The thread, not its starter, keeps the SDK quiet: abandoned, it may still have something to log.
        with quiet() as said:
            try:
                self._send()
            except Exception as error:
                self._error = f"{type(error).__name__}: {error}"
            if self._close and not self.abandoned.is_set():
                self._error = _shut(self._exporter) or self._error
            if self._error and said:
                self._error = f"{self._error}: {said[0]}"

    def _send(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        for batch in self._batches:
            if self.abandoned.is_set():
                return
            self._under_way = len(batch)
            if self._exporter.export(batch) is not SpanExportResult.SUCCESS:
                self._error = "the exporter refused a batch"
                return
            self._sent, self._done, self._under_way = self._sent + len(batch), self._done + 1, 0

    def result(self, error: str = "") -> ExportResult:
        why = clean(error or self._error)
        return ExportResult(self._sent, self._done, self._under_way if why else 0, why)


def discard(exporter: SpanExporter) -> None:
    """Shuts ``exporter`` down without waiting: older SDKs wait for the very request that hangs."""
    threading.Thread(target=_shut, args=(exporter,), daemon=True).start()


def _shut(exporter: SpanExporter) -> str:
    """Shuts ``exporter`` down; says what went wrong, such as a full disk at the last write."""
    try:
        with quiet():
            exporter.shutdown()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.said) < 8:
            self.said.append(record.getMessage())


_quiet_lock = threading.Lock()
_quiet_depth = 0
_propagated: dict[str, bool] = {}


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Keeps the exporters' loggers off the terminal; yields what they would have said."""
    listener = _Listener()
    _mute(listener)
    try:
        yield listener.said
    finally:
        _unmute(listener)


def _mute(listener: _Listener) -> None:
    global _quiet_depth
    with _quiet_lock:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            if _quiet_depth == 0:
                _propagated[name] = logger.propagate
                logger.propagate = False
            logger.addHandler(listener)
        _quiet_depth += 1


def _unmute(listener: _Listener) -> None:
    global _quiet_depth
    with _quiet_lock:
        _quiet_depth -= 1
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(listener)
            if _quiet_depth == 0:
                logger.propagate = _propagated[name]
