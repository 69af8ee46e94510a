"""``brickprof export``: a recorded run for other tools.

Enters: a run. Leaves: Parquet partitioned by rank, CSV tables, or OTLP spans to an endpoint or a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from brickprof.run import Run

FORMATS = ("parquet", "csv", "otlp")
_TABLES = ("spans", "samples", "events", "loss", "lr", "bricks", "tensors", "ranks")


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or the last letters of its id.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="parquet, csv or otlp.")] = "parquet",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PATH", help="Where to: a folder; for otlp a file of JSON lines."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="For otlp: the endpoint to send to.")
    ] = None,
) -> None:
    """Write a recorded run as Parquet, CSV or OpenTelemetry spans.

    Example: brickprof export k3f9 --to csv -o tables
    """
    from brickprof.errors import OutputError, UsageError
    from brickprof.run import Run

    if to not in FORMATS:
        raise UsageError(f"--to is {to!r}.", f"Formats: {', '.join(FORMATS)}.")
    if endpoint and to != "otlp":
        raise UsageError(f"--endpoint is for --to otlp, not for {to}.")
    opened = Run.open(run)
    try:
        written = {"parquet": _parquet, "csv": _csv}[to](opened, out) if to != "otlp" else None
    except OSError as error:
        raise OutputError(f"{out or 'the run'} cannot be written: {error.strerror or error}.") from None
    print(f"wrote {written}" if written else _otlp(opened, out, endpoint))


def _parquet(run: Run, out: Path | None) -> Path:
    return run.to_parquet(out or _beside(run, "parquet"))


def _csv(run: Run, out: Path | None) -> Path:
    folder = out or _beside(run, "csv")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TABLES:
        getattr(run, name).to_csv(folder / f"{name}.csv", index=False)
    return folder


def _otlp(run: Run, out: Path | None, endpoint: str | None) -> str:
    from brickprof.errors import OutputError
    from brickprof.telemetry import configured_endpoint, export_run

    where = str(out or endpoint or configured_endpoint() or "")
    result = export_run(run, endpoint=endpoint, file=out)
    if result.error:
        raise OutputError(f"{result.failed:,} spans were not exported to {where}: {result.error}")
    return f"exported {result.spans:,} spans to {where}"


def _beside(run: Run, name: str) -> Path:
    return (run.path or Path()) / name
