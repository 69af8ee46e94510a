"""A run as one web page that can be sent to somebody: verdict, whys, the picture that proves them, all else below.

Enters: a ``Diagnosis``, and its ``Run`` for the pictures and the evidence. Leaves: one HTML file that needs no network
and no other file. Without the run it has the words and not the pictures, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.contracts.verdicts import Severity
from brickprof.reports.page import parts, tables
from brickprof.reports.page.curves import curves
from brickprof.reports.page.heat import heat_map
from brickprof.reports.page.proof import Prover
from brickprof.reports.page.shell import document
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

NAME, SUFFIX = "html", ".html"
NEEDS_RUN = True
"""``REPORT`` takes the run too."""
_NEAR_FINDINGS = 8


def text(diagnosis: Diagnosis, run: Run | None = None) -> str:
    data = _pictures(diagnosis, run)
    return document(f"brickprof: {diagnosis.run.get('id') or 'run'}", _body(diagnosis, run, data), data)


def render(diagnosis: Diagnosis, console: Console, run: Run | None = None) -> None:
    # Past the console's own layout: a page must not be wrapped or styled.
    console.file.write(text(diagnosis, run))


def _pictures(diagnosis: Diagnosis, run: Run | None) -> dict[str, Any]:
    """What the page's script draws."""
    findings: list[dict[str, Any]] = [
        {"id": f"F{number}", "step": finding.first_step, "brick": clean(finding.brick),
         "symptom": clean(finding.symptom, limit=160)}
        for number, finding in enumerate(diagnosis.findings, start=1)
        if finding.severity is not Severity.INFO
    ]  # fmt: skip
    if run is None:
        return {"findings": findings, "curves": [], "heat": None}
    near = [finding["step"] for finding in findings[:_NEAR_FINDINGS]]
    return {
        "findings": findings,
        "curves": curves(run, near),
        "heat": heat_map(run, near[0] if near else None),
    }


def _body(diagnosis: Diagnosis, run: Run | None, data: dict[str, Any]) -> str:
    prover = Prover(run)
    first, rest = _apart(diagnosis)
    words = parts.leading(first, prover) if first is not None else ""
    picture = _picture(data, run)
    top = f'<div class="words">{words}</div>{picture}' if words else picture
    return "\n".join(
        block
        for block in (
            f'<header><span class="brand">brickprof</span><span class="dim">{parts.about(diagnosis)}</span>'
            '<button type="button" id="theme">Dark</button></header>',
            f"<main>{parts.verdict(diagnosis)}",
            f'<section id="first" class="{"split" if words else "whole"}" aria-label="What happened">{top}</section>',
            parts.others(rest, prover),
            _CURVES if data["curves"] else "",
            tables.contracts(diagnosis),
            tables.bricks(run),
            tables.moved(diagnosis),
            tables.holdings(run, diagnosis),
            "</main>",
        )
        if block
    )


def _apart(diagnosis: Diagnosis) -> tuple[Any, tuple[Any, ...]]:
    """The finding to fix first, and the others; a mere note is never the first."""
    findings = diagnosis.findings
    if not findings or findings[0].severity is Severity.INFO:
        return None, findings
    return findings[0], findings[1:]


def _picture(data: dict[str, Any], run: Run | None) -> str:
    if data["heat"] is not None:
        shared = (
            " A column of several steps shows their mean, or what is ten times off." if data["heat"]["shared"] else ""
        )
        title, note = "log10 |grad| by layer and step", f"Cells marked × are NaN or Inf.{shared}"
        kind = "heat"
    elif data["curves"]:
        title, note, kind = "Around the step where it began" if data["findings"] else "The run", "", "proof"
    else:
        why = "nothing that could be drawn was recorded" if run is not None else "the run itself was not at hand"
        return f'<p class="dim">No pictures: {why}.</p>'
    return (
        f'<figure class="picture"><figcaption>{title}</figcaption><div id="{kind}"></div>'
        f'<p class="readout" aria-live="polite"></p><p class="dim">{note} {_KEYS}</p></figure>'
    )


_KEYS = '<span class="keys">Drag to zoom, double-click to go back; arrow keys move when it has the focus.</span>'
_CURVES = (
    '<section id="course"><h2>Course of the run</h2><div class="tools">'
    f'<button type="button" id="whole">Whole run</button><span class="dim">{_KEYS}</span></div><div id="curves"></div>'
    '<p class="readout" aria-live="polite"></p></section>'
)

REPORT = render
