"""Annotations of a GitHub workflow: a line for each finding, at the file and line that its evidence names.

Enters: a ``Diagnosis``, and its ``Run`` for the places. Leaves: workflow commands (``::error file=...::message``) for
the log of a step. Nothing in a string of a run can end a command or begin another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.reports import plain
from brickprof.reports.places import EVIDENCE, Places
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis, Finding
    from brickprof.run import Run

NAME, SUFFIX = "github", ".github.txt"
NEEDS_RUN = True
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_OVERALL = {Verdict.FAIL: "error", Verdict.PASS: "notice"}
_LONGEST, _NAMED = 4_000, 12


def text(diagnosis: Diagnosis, run: Run | None = None) -> str:
    return "".join(f"{line}\n" for line in _lines(diagnosis, run))


def render(diagnosis: Diagnosis, console: Console, run: Run | None = None) -> None:
    # Past the console's own layout: a command is one line.
    console.file.write(text(diagnosis, run))


def _lines(diagnosis: Diagnosis, run: Run | None) -> Iterator[str]:
    places = Places(diagnosis, run)
    for finding in diagnosis.findings:
        yield _annotation(finding, places)
    if not any(finding.severity is not Severity.INFO for finding in diagnosis.findings):
        # A run about which nothing can be said must not look like one that held.
        said = f"{plain.headline(diagnosis)} ({plain.name(diagnosis)})"
        yield command(_OVERALL.get(diagnosis.verdict, "warning"), said, title="brickprof")
    open_ones = plain.unjudged(diagnosis)
    if open_ones:
        left = len(open_ones) - _NAMED
        more = f" and {left} more" if left > 0 else ""
        said = f"{plain.counts(diagnosis)}. Not judged: {', '.join(open_ones[:_NAMED])}{more}"
        yield command("notice", said, title="brickprof")


def _annotation(finding: Finding, places: Places) -> str:
    place = places.of(finding)
    where = {"file": place.file} if place is not None and place.inside else {}
    if where and place is not None and place.by == EVIDENCE:
        where["line"] = str(place.line)
    title = f"brickprof: {clean(finding.contract or finding.root_cause, limit=80)}"
    return command(_COMMANDS[finding.severity], "\n".join(plain.told(finding)), **where, title=title)


def command(name: str, message: str, **properties: str) -> str:
    """One workflow command; its escapes are those of GitHub's runner."""
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {told}::{_data(message)}"


def _data(foreign: str) -> str:
    # Escapes come last: shortened behind them, one could be cut in two.
    shown = clean(foreign, limit=_LONGEST, one_line=False)
    return shown.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(foreign: str) -> str:
    shown = clean(foreign, limit=1_000)
    return _data(shown).replace(":", "%3A").replace(",", "%2C")


REPORT = render
