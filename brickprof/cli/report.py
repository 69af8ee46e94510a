"""``brickprof report``: a recorded run, or a log, as files for people and for programs.

Enters: a run's folder or id, or a log, and which reports. Leaves: the reports, in files or on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from brickprof.cli import _reporters as reporters
from brickprof.cli import _writing as writing

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis
    from brickprof.run import Run

FAIL_ON = ("never", "error", "warning")
_SEVERE = {"never": (), "error": ("error",), "warning": ("error", "warning")}
_STEM = "report"
_NOTHING_TO_JUDGE = 3


@dataclass(frozen=True, slots=True)
class Target:
    """A report, and what was typed for its place."""

    module: Any
    typed: str | None
    folder: bool = False
    """Whether what was typed is to be a folder, there or not."""
    beside: bool = False
    """Whether it lies in the run's folder when nothing was typed; otherwise it goes to stdout."""

    def place(self, home: Path) -> str:
        """The file; ``-`` for stdout. A folder that is missing is made."""
        name = f"{_STEM}{self.module.SUFFIX or '.txt'}"
        if self.typed is None:
            return str(home / name) if self.beside else writing.STDOUT
        if self.typed == writing.STDOUT or not (self.folder or _is_folder(self.typed)):
            return self.typed
        writing.make_folder(self.typed)
        return str(Path(self.typed) / name)


class WithReports(TyperCommand):
    """Its help ends with the reports there are, those of third parties among them."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Reports"):
            formatter.write_dl(_listing())


def register(app: typer.Typer) -> None:
    app.command("report", cls=WithReports)(report)


def report(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's folder, the last letters of its id, or a log.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--report", "-r", metavar="NAME", help="Which (see below); again for more. Default: by FILE."),
    ] = None,
    out: Annotated[
        list[str] | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where it is written; a folder for several; - for stdout."),
    ] = None,
    fail_on: Annotated[
        str, typer.Option(metavar="WHEN", help="error, warning or never: exit 1 when there is such a finding.")
    ] = "never",
    list_reports: Annotated[bool, typer.Option("--list", help="Say which reports there are, and stop.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of -r json, and stop.")] = False,
) -> None:
    """Write reports of a run: a page for a colleague, Markdown for an issue, JUnit and SARIF for CI, tables, JSON.

    The ending of the file says which report it is; -r says it by name. Files are whole or not there: what stood there
    stays until the new one is complete.

    Examples:

      brickprof report k3f9 -o report.html

      brickprof report train.log -o report.html -o report.md

      brickprof report k3f9 -r html -r junit -r sarif -o reports/

      brickprof report k3f9 -r github --fail-on error

      brickprof report k3f9 -r json | jq .verdict

    Without -o, html is written to report.html in the run's folder (for a log: in the working directory), as are several
    reports, and any other one goes to stdout. Exit codes: 0 written; 1 written, and a finding is as severe as
    --fail-on; 2 wrong usage, or no such run; 3 written, with --fail-on, and there was nothing to judge.
    """
    from brickprof.analysis.opening import open_run
    from brickprof.diagnosis import diagnosed
    from brickprof.diagnosis.saving import keep
    from brickprof.errors import UsageError
    from brickprof.text import clean

    if list_reports or schema:
        _say_what_there_is(schema)
        return
    if run is None:
        raise UsageError("Missing argument 'RUN'.", "Such as: brickprof report k3f9 -o report.html")
    if fail_on not in FAIL_ON:
        raise UsageError(f"--fail-on is {clean(fail_on)!r}.", f"Give one of: {', '.join(FAIL_ON)}.")
    wanted = targets(names or [], out or [])
    opened = open_run(run)
    diagnosis = diagnosed(opened)
    if damage := diagnosis.run.get("damage"):
        lost = "; ".join(clean(each) for each in damage)
        print(f"brickprof: this run is damaged, and what is whole is reported: {lost}", file=sys.stderr)
    for target in wanted:
        _make(target.module, target.place(opened.path or Path()), diagnosis, opened)
    sys.stdout.flush()
    keep(diagnosis, opened)
    raise typer.Exit(exit_code(diagnosis, fail_on))


def targets(names: Sequence[str], out: Sequence[str]) -> list[Target]:
    """Which reports go where; what cannot be is said before any work is done."""
    from brickprof.errors import UsageError

    if len(out) > 1 and names:
        raise UsageError("-r and several -o do not go together.", "Give several -r and one -o DIR, or only -o FILE.")
    if list(out).count(writing.STDOUT) > 1 or (len(names) > 1 and writing.STDOUT in out):
        raise UsageError("stdout takes one report.", "Give -o DIR for several.")
    if not names:
        return [Target(_usual(file), file) for file in out] or [Target(reporters.named("html"), None, beside=True)]
    chosen = [reporters.named(name) for name in dict.fromkeys(names)]
    place = out[0] if out else None
    several = len(chosen) > 1
    if several and place is not None:
        _check_folder(place)
    beside = several or chosen[0].SUFFIX == ".html"
    return [Target(module, place, folder=several, beside=beside) for module in chosen]


def _usual(file: str) -> Any:
    if file == writing.STDOUT:
        return reporters.named("terminal")
    return reporters.named("html") if _is_folder(file) else reporters.by_ending(file)


def _is_folder(typed: str) -> bool:
    return typed.endswith("/") or Path(typed).is_dir()


def _check_folder(place: str) -> None:
    from brickprof.errors import UsageError
    from brickprof.text import clean

    if Path(place).exists() and not Path(place).is_dir():
        raise UsageError(f"{clean(place)} is a file.", "Several reports go into a folder: give -o DIR.")


def _make(module: Any, place: str, diagnosis: Diagnosis, run: Run) -> None:
    from brickprof.text import clean

    if place == writing.STDOUT and not module.SUFFIX:
        reporters.show(module, diagnosis, run, writing.console())
        return
    if place == writing.STDOUT and reporters.is_binary(module):
        writing.refuse_binary_on_terminal(module.NAME)
    writing.write(place, reporters.content(module, diagnosis, run))
    if place != writing.STDOUT:
        print(f"brickprof: written to {clean(place)}", file=sys.stderr)


def exit_code(diagnosis: Diagnosis, fail_on: str) -> int:
    """1 for a finding as severe as the user will not have, 3 where he asked and nothing could be judged."""
    if any(finding.severity.value in _SEVERE[fail_on] for finding in diagnosis.findings):
        return 1
    judged = diagnosis.verdict.value in ("PASS", "FAIL")
    return 0 if judged or fail_on == "never" else _NOTHING_TO_JUDGE


def _say_what_there_is(schema: bool) -> None:
    if schema:
        from brickprof.reports import json as document

        writing.write(writing.STDOUT, document.SCHEMA.read_bytes())
        return
    listed = _listing()
    width = max(len(name) for name, _ in listed)
    print("\n".join(f"{name:<{width}}  {what}" for name, what in listed))


def _listing() -> list[tuple[str, str]]:
    return [(module.NAME, _line(module)) for module in reporters.known()]


def _line(module: Any) -> str:
    kept = ", ".join(reporters.endings(module))
    return f"{reporters.about(module)} ({kept})" if kept else reporters.about(module)
