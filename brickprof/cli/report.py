"""``brickprof report``: a recorded run, or a log, as a file for people or for programs.

Enters: a run's folder or id, or a log, and which report. Leaves: the report, in a file or on stdout.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, the last letters of its id, or a log.")],
    name: Annotated[
        str,
        typer.Option("--report", "-r", metavar="NAME", help="html, json, terminal, ...; default: by FILE's ending."),
    ] = "",
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Where it is written; - for stdout.")
    ] = None,
) -> None:
    """Write a report of a run: a web page to send to a colleague, JSON for a program, text for a terminal.

    The page is one file that needs no network: the verdict, the whys with their evidence, gradients by layer and step,
    loss, norm and learning rate on one axis, contracts, and the bricks that cost most.

    Examples:

      brickprof report k3f9 -o report.html

      brickprof report train.log -r html -o report.html

      brickprof report k3f9 -r json

    Without -o, html is written to report.html in the run's folder (for a log: in the working directory), and anything
    else to stdout. Exit codes: 0 written; 2 wrong usage, or no such run.
    """
    from brickprof.analysis.opening import open_run
    from brickprof.diagnosis import diagnose

    module = _reporter(name, out)
    opened = open_run(run)
    text = _text(module, diagnose(opened), opened)
    if out is None and module.SUFFIX == ".html":
        out = str((opened.path or Path()) / "report.html")
    if out is None or out == "-":
        sys.stdout.write(text)
        return
    _write(Path(out), text)


def _reporter(name: str, out: str | None) -> Any:
    """The report that is meant: by its name, or by the ending of the file."""
    from brickprof import plugins
    from brickprof.errors import UsageError
    from brickprof.text import clean

    found = [plugin.module for plugin in plugins.discover("brickprof.reports") if hasattr(plugin.module, "REPORT")]
    if name:
        chosen = [module for module in found if name == module.NAME]
        asked = f"there is no report {clean(name)}."
    elif out is None or out == "-":
        usual = "html" if out is None else "terminal"
        chosen = [module for module in found if usual == module.NAME]
        asked = ""
    else:
        chosen = [module for module in found if module.SUFFIX and Path(out).suffix == module.SUFFIX]
        asked = f"no report is written as {clean(out)}."
    if not chosen:
        raise UsageError(asked, f"There are: {', '.join(sorted(module.NAME for module in found))}.")
    return chosen[0]


def _text(module: Any, diagnosis: Any, run: Any) -> str:
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=110)
    if getattr(module, "NEEDS_RUN", False):
        module.REPORT(diagnosis, console, run)
    else:
        module.REPORT(diagnosis, console)
    return text.getvalue()


def _write(file: Path, text: str) -> None:
    from brickprof.errors import OutputError
    from brickprof.text import clean

    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise OutputError(f"{clean(file)} cannot be written: {error.strerror or error}.") from None
    print(f"brickprof: written to {clean(file)}", file=sys.stderr)
