"""From the journal to OpenTelemetry.

    export_run(run, endpoint=...)         a recorded run: OTLP over HTTP or gRPC, a file of OTLP JSON lines
    LiveExporter(folder, endpoint)        a run that goes on
    export_to_provider(run, provider)     a tracer provider of the user's own
    configured_endpoint()                 where the OTEL_* variables want traces to go, if they say

Spans are written to the journal first and exported from there, by another process or after the run, so an
endpoint that is down or slow costs the training nothing and loses nothing.
"""

from brickprof.telemetry.delivery import ExportResult
from brickprof.telemetry.environment import endpoint as configured_endpoint
from brickprof.telemetry.export import export_run, export_to_provider
from brickprof.telemetry.live import LiveExporter

__all__ = ["ExportResult", "LiveExporter", "configured_endpoint", "export_run", "export_to_provider"]
