"""Where spans go over the network: OTLP over HTTP or over gRPC.

Enters: an endpoint, a protocol, and the OTEL_EXPORTER_OTLP_* variables, which fill in whatever was not said.
Leaves: a ``SpanExporter`` of OpenTelemetry's SDK.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from brickprof.errors import ConfigurationError
from brickprof.telemetry import environment

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

HTTP, GRPC = "http/protobuf", "grpc"
_GRPC_PORT = 4317
_PATH = "/v1/traces"


def otlp_exporter(
    endpoint: str | None = None, protocol: str | None = None, *, limit: float | None = None
) -> SpanExporter:
    """The SDK's OTLP exporter; ``limit`` caps the seconds that one request may take, retries included.

    A base URL such as ``http://host:4318`` is enough; ``grpc://host:4317`` says both where and how.
    """
    if endpoint == environment.endpoint():
        endpoint = None  # the SDK reads the variables itself: the one of the signal is not a base URL
    protocol = protocol or environment.protocol() or _implied_protocol(endpoint or environment.endpoint())
    timeout = min(environment.timeout(), limit if limit is not None else math.inf)
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=_http_url(endpoint) if endpoint else None, timeout=timeout)
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc(endpoint=_grpc_url(endpoint) if endpoint else None, timeout=timeout)
    raise ConfigurationError(f"{protocol!r} is no OTLP protocol I speak.", f"I speak {HTTP} and {GRPC}.")


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
