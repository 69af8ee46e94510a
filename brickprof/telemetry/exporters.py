"""Where spans go: OTLP over HTTP, OTLP over gRPC, or OTLP JSON lines in a file.

Enters: an endpoint, a protocol or a path, and the OTEL_EXPORTER_OTLP_* variables, which fill in whatever was
not said. Leaves: a ``SpanExporter`` of OpenTelemetry's SDK.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from brickprof.errors import ConfigurationError
from brickprof.telemetry import environment

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

HTTP, GRPC = "http/protobuf", "grpc"
_GRPC_PORT = 4317
_PATH = "/v1/traces"


def otlp_exporter(
    endpoint: str | None = None, protocol: str | None = None, *, limit: float | None = None
) -> SpanExporter:
    """The SDK's OTLP exporter; ``limit`` caps the seconds that one request may take, retries included.

    A base URL such as ``http://host:4318`` is enough; ``grpc://host:4317`` says both where and how.
    """
    protocol = protocol or environment.protocol() or _implied_protocol(endpoint or environment.endpoint())
    timeout = min(environment.timeout(), limit if limit is not None else math.inf)
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=_http_url(endpoint) if endpoint else None, timeout=timeout)
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc(endpoint=_grpc_url(endpoint) if endpoint else None, timeout=timeout)
    raise ConfigurationError(f"{protocol!r} is no OTLP protocol I speak.", f"I speak {HTTP} and {GRPC}.")


class JsonLines(SpanExporter):
    """One ExportTraceServiceRequest a line, in OTLP's JSON encoding, which collectors read from files."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        json.dump(otlp_json(encode_spans(spans)), self._file, separators=(",", ":"), ensure_ascii=False)
        self._file.write("\n")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._file.close()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self._file.flush()
        return True


def otlp_json(request: Any) -> dict[str, Any]:
    """A protobuf request as OTLP's JSON: protobuf's own, but with ids in hexadecimal and enums as numbers."""
    from google.protobuf.json_format import MessageToDict

    document: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for resource_spans in document.get("resourceSpans", ()):
        for scope_spans in resource_spans.get("scopeSpans", ()):
            for span in scope_spans.get("spans", ()):
                for item in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in item:
                            item[key] = b64decode(item[key]).hex()
    return document


def _implied_protocol(endpoint: str) -> str:
    try:
        url = urlsplit(_with_scheme(endpoint))
        return GRPC if url.scheme in ("grpc", "grpcs") or url.port == _GRPC_PORT else HTTP
    except ValueError:
        return HTTP


def _with_scheme(endpoint: str) -> str:
    return endpoint if "://" in endpoint else f"http://{endpoint}"


def _checked(endpoint: str, schemes: Sequence[str]) -> tuple[str, str, str, str]:
    """Scheme, host and port, path and query of ``endpoint``."""
    try:
        url = urlsplit(_with_scheme(endpoint))
        whole = url.scheme in schemes and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        whole = False
    if not whole:
        raise ConfigurationError(
            f"{endpoint!r} is no OTLP endpoint.",
            "Give a URL such as http://localhost:4318 or grpc://localhost:4317.",
        )
    return url.scheme, url.netloc, url.path, url.query


def _http_url(endpoint: str) -> str:
    scheme, place, path, query = _checked(endpoint, ("http", "https"))
    path = path.rstrip("/")
    return urlunsplit((scheme, place, path if path.endswith(_PATH) else path + _PATH, query, ""))


def _grpc_url(endpoint: str) -> str:
    scheme, place, _, _ = _checked(endpoint, ("grpc", "grpcs", "http", "https"))
    return f"{'https' if scheme in ('grpcs', 'https') else 'http'}://{place}"
