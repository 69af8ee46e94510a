"""A recorded run becomes an OpenTelemetry trace, somewhere else.

Enters: a run, or its folder. Leaves: its spans, at an OTLP endpoint, in a file of OTLP JSON lines, in
any ``SpanExporter``, or in a tracer provider of the user's own; and an ``ExportResult``. Nothing here runs
inside a training step, and the global tracer provider is neither read nor set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof.errors import BrickprofError, OutputError
from brickprof.records import Event, Span
from brickprof.telemetry.delivery import ExportResult, deliver, quiet
from brickprof.telemetry.files import whole_text

if TYPE_CHECKING:
    import pandas as pd
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import TracerProvider

    from brickprof.run import Run

BATCH = 512
DEADLINE = 60.0


def export_run(
    run: Run | Path | str,
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    file: Path | None = None,
    exporter: SpanExporter | None = None,
    deadline: float = DEADLINE,
    findings: bool = False,
) -> ExportResult:
    """Exports all spans of ``run``: to ``exporter``, else into ``file``, else to an OTLP endpoint.

    With ``findings`` the run is diagnosed first, and its own span carries what was found.
    Without ``endpoint`` the OTEL_EXPORTER_OTLP_* variables say where. A folder that is no run raises; an
    endpoint that is down, slow or wrong does not: the result says how far it got, in ``deadline`` seconds.
    """
    recorded = _opened(run)
    total = len(recorded.spans) + 1
    batches = in_batches(spans_of(recorded, findings=findings))
    try:
        if file is not None and exporter is None:
            result = _into_file(file, batches)
        else:
            target = exporter or _over_network(endpoint, protocol, deadline)
            result = deliver(target, batches, deadline=deadline, close=exporter is None)
    except (BrickprofError, OSError) as error:
        return ExportResult(failed=total, error=str(error))
    return ExportResult(result.spans, result.batches, total - result.spans, result.error)


def export_to_provider(run: Run | Path | str, provider: TracerProvider) -> ExportResult:
    """Replays ``run`` through the user's own tracer provider: its sampler, processors and exporters decide.

    The ids are the provider's; names, times, parents, attributes, events and states are the run's.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

    tracer = provider.get_tracer("brickprof")
    places: dict[int, SpanContext] = {}
    try:
        with quiet():
            for span in _parents_first(spans_of(_opened(run))):
                above = places[span.parent.span_id] if span.parent else None
                context = set_span_in_context(NonRecordingSpan(above), Context()) if above else Context()
                opened = tracer.start_span(span.name, context, attributes=span.attributes, start_time=span.start_time)
                for event in span.events:
                    opened.add_event(event.name, event.attributes, event.timestamp)
                opened.set_status(span.status)
                opened.end(span.end_time)
                places[_number(span)] = opened.get_span_context()
    except BrickprofError:
        raise
    except Exception as error:  # a processor of the user's, of any quality
        return ExportResult(spans=len(places), error=f"{type(error).__name__}: {error}")
    return ExportResult(spans=len(places), batches=1)


def spans_of(run: Run, *, findings: bool = False) -> Iterator[ReadableSpan]:
    """The trace of ``run``: every recorded span, then the run's own."""
    from brickprof.telemetry.marks import finding_marks
    from brickprof.telemetry.tree import Tree

    known: dict[int, set[int]] = {}
    for rank, number in _rows(run.spans, "rank", "id"):
        known.setdefault(rank, set()).add(number)
    tree = Tree(run.meta, known)
    for row in _rows(run.events, "kind", "step", "fields", "seq", "time_ns", "rank"):
        tree.event(Event(*row))
    tree.found(finding_marks(run) if findings else ())
    for record in run.records():
        if isinstance(record, Span) and tree.span(record):
            yield from tree.over()
    yield from tree.finish()


def in_batches(spans: Iterable[ReadableSpan], size: int = BATCH) -> Iterator[list[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    for span in spans:
        batch.append(span)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _rows(table: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].tolist() for name in columns), strict=True)


def _opened(run: Run | Path | str) -> Run:
    from brickprof.run import Run

    return run if isinstance(run, Run) else Run.open(run)


def _into_file(file: Path, batches: Iterable[Sequence[ReadableSpan]]) -> ExportResult:
    """OTLP JSON lines, there whole or not at all; packed where the name ends in ``.gz``."""
    from brickprof.telemetry.jsonlines import JsonLines

    file.parent.stat()  # a folder that is not there was mistyped
    with whole_text(file) as stream:
        result = deliver(JsonLines(stream), batches, deadline=None)
        if result.error:
            raise OutputError(result.error)
    return result


def _over_network(endpoint: str | None, protocol: str | None, limit: float) -> SpanExporter:
    from brickprof.telemetry.exporters import otlp_exporter

    return otlp_exporter(endpoint, protocol, limit=limit)


def _parents_first(spans: Iterable[ReadableSpan]) -> Iterator[ReadableSpan]:
    """``spans`` in an order in which a parent always comes before its children."""
    children: dict[int, list[ReadableSpan]] = {}
    for span in spans:
        children.setdefault(span.parent.span_id if span.parent else 0, []).append(span)
    waiting = children.get(0, [])
    while waiting:
        span = waiting.pop()
        yield span
        below = children.get(_number(span), [])
        waiting += sorted(below, key=lambda child: child.start_time or 0, reverse=True)


def _number(span: ReadableSpan) -> int:
    context = span.get_span_context()
    return context.span_id if context else 0
