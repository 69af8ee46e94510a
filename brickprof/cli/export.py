"""``brickprof export``: a recorded run, or a log, for other people's tools.

Enters: a run's folder or id, or a log, and a format. Leaves: a file, a folder, or spans sent to an endpoint. The
formats are the modules of ``brickprof.telemetry.exports``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from brickprof.cli._writing import STDOUT

if TYPE_CHECKING:
    from brickprof.run import Run

_STDOUT = Path("/dev/stdout")


class _WithFormats(TyperCommand):
    """The command, whose help names every format that is there."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from brickprof.telemetry.exports import formats
        from brickprof.text import clean

        with formatter.section("Formats"):
            formatter.write_dl([(clean(name), clean(module.TITLE)) for name, module in formats().items()])


def register(app: typer.Typer) -> None:
    app.command("export", cls=_WithFormats)(export)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, the last letters of its id, or a log.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="One of the formats below.")] = "parquet",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="The file or folder to write, - for stdout; default: in the run's folder.",
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="For otlp: the endpoint to send to.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="A:B", help="Only these steps, both included: 100:200, 100:, 7.")
    ] = None,
) -> None:
    """Write a recorded run, or the numbers of a log, for other people's tools.

    Examples:

      brickprof export k3f9 --to perfetto -o trace.json.gz --steps 200:210

      brickprof export k3f9 --to otlp --endpoint http://localhost:4318

      brickprof export k3f9 --to tensorboard -o runs/k3f9

      brickprof export train.log --to wandb-csv -o history.csv

    Without -o, a recorded run is written into its own folder, and a log into the working directory; otlp goes
    to the endpoint that OTEL_EXPORTER_OTLP_ENDPOINT names. Exit codes: 0 written; 2 wrong usage, no such run, or a
    place that cannot be written; 3 the run holds nothing that the format could show.
    """
    from brickprof.analysis.opening import open_run
    from brickprof.telemetry import exports
    from brickprof.telemetry.window import steps as window

    module = exports.find(to)
    if endpoint and (out is not None or not hasattr(module, "send")):
        raise _no_endpoint(to, out)
    asked = window(steps) if steps is not None else None
    opened = open_run(run)
    _warn(opened)
    taken = out is not None and str(out) in (STDOUT, str(_STDOUT))
    said = _export(module, _part(opened, asked), _STDOUT if taken else out, endpoint)
    print(said, file=sys.stderr if taken else sys.stdout)


def _export(module: Any, run: Run, out: Path | None, endpoint: str | None) -> str:
    from brickprof.errors import OutputError, UsageError
    from brickprof.telemetry import exports
    from brickprof.text import clean

    if out is None and hasattr(module, "send"):
        return clean(module.send(run, endpoint), limit=2000)
    if out == _STDOUT and not module.SUFFIX:
        raise UsageError(f"--to {module.NAME} writes a folder, which stdout is not.", "Say where with -o FOLDER.")
    place = exports.place(module, run, out)
    try:
        return f"wrote {clean(module.write(run, place), limit=2000)}"
    except OSError as error:
        hint = "Say where else with -o PATH." if out is None else ""
        raise OutputError(f"{clean(place)} cannot be written: {error.strerror or error}.", hint) from None


def _part(run: Run, steps: range | None) -> Run:
    from brickprof.telemetry.window import within

    return run if steps is None else within(run, steps)


def _warn(run: Run) -> None:
    from brickprof.text import clean

    if run.damage:
        lost = "; ".join(clean(damage) for damage in run.damage)
        print(f"brickprof: this run is damaged, and what is whole is written: {lost}", file=sys.stderr)


def _no_endpoint(to: str, out: Path | None) -> Exception:
    from brickprof.errors import UsageError
    from brickprof.telemetry import exports
    from brickprof.text import clean

    takers = [name for name, module in exports.formats().items() if hasattr(module, "send")]
    if to not in takers:
        return UsageError(f"--endpoint is for --to {' or '.join(takers)}, not for {to}.")
    return UsageError(f"--endpoint sends, -o {clean(out)} writes.", "Give one of them.")
