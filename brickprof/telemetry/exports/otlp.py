"""A run as one OpenTelemetry trace: OTLP to an endpoint, or OTLP JSON lines in a file.

Enters: a run. Leaves: its spans, there. See ``brickprof.telemetry.export``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.errors import OutputError, UsageError
from brickprof.telemetry.exports import times_needed

if TYPE_CHECKING:
    from brickprof.run import Run
    from brickprof.telemetry import ExportResult

NAME, SUFFIX = "otlp", ".otlp.jsonl"
TITLE = "OpenTelemetry spans: to --endpoint URL, or into a file of OTLP JSON lines with -o (.jsonl, or .jsonl.gz)"


def write(run: Run, out: Path) -> Path:
    from brickprof.telemetry import export_run

    times_needed(run, "a trace")
    out.parent.mkdir(parents=True, exist_ok=True)
    _complain(export_run(run, file=out, findings=True), str(out))
    return out


def send(run: Run, endpoint: str | None) -> str:
    from brickprof.telemetry import configured_endpoint, export_run

    where = endpoint or configured_endpoint()
    if not where:
        raise UsageError(
            "--to otlp does not know where to.",
            "Say --endpoint http://localhost:4318, or -o FILE, or set OTEL_EXPORTER_OTLP_ENDPOINT.",
        )
    times_needed(run, "a trace")
    result = export_run(run, endpoint=endpoint, findings=True)
    _complain(result, where)
    return f"exported {result.spans:,} spans to {where}"


def _complain(result: ExportResult, where: str) -> None:
    if result.error:
        raise OutputError(f"{result.failed:,} spans were not exported to {where}: {result.error}.")
