"""OTLP JSON lines: a trace in a file, one ExportTraceServiceRequest a line.

Enters: a stream of text, and batches of spans. Leaves: lines in it in OTLP's JSON encoding, which collectors read
from files: protobuf's own JSON, but with ids in hexadecimal and enums as numbers. It is written out here because going
through protobuf's messages takes several times as long.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan

_IS_REMOTE_KNOWN = 0x100
_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}


class JsonLines(SpanExporter):
    """Writes into ``stream``, which stays its owner's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        line = json.dumps(request(spans), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        self._stream.write(f"{line}\n")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self._stream.flush()
        return True


def request(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """One ExportTraceServiceRequest; the spans of one process stand together."""
    processes: dict[int, tuple[Resource, list[ReadableSpan]]] = {}
    for span in spans:
        processes.setdefault(id(span.resource), (span.resource, []))[1].append(span)
    return {"resourceSpans": [_process(resource, theirs) for resource, theirs in processes.values()]}


def _process(resource: Resource, spans: list[ReadableSpan]) -> dict[str, Any]:
    scope = spans[0].instrumentation_scope
    found: dict[str, Any] = {"scope": {}, "spans": [_span(span) for span in spans]}
    if scope is not None:
        found["scope"] = {"name": scope.name} | ({"version": scope.version} if scope.version else {})
        found |= {"schemaUrl": scope.schema_url} if scope.schema_url else {}
    return {"resource": {"attributes": _attributes(resource.attributes)}, "scopeSpans": [found]}


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    found: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes),
        "status": {"code": span.status.status_code.value} if span.status.status_code.value else {},
        "flags": _IS_REMOTE_KNOWN,
    }
    if span.parent is not None:
        found["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.events:
        found["events"] = [_event(event) for event in span.events]
    if span.status.description:
        found["status"]["message"] = span.status.description
    return found


def _event(event: Event) -> dict[str, Any]:
    return {
        "timeUnixNano": str(event.timestamp),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


def _attributes(said: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in (said or {}).items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _FLOATS.get(value, "NaN")}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
