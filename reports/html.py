"""A run as one web page that can be sent to somebody: verdict, whys, the picture that proves them, all else below.

Enters: a ``Diagnosis``, and its ``Run`` for the pictures and the evidence. Leaves: one HTML file that needs no network
and no other file. Without the run it has the words and not the pictures, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.contracts.verdicts import Severity
from brickprof.reports import plain
from brickprof.reports.page import parts, resources, sections, steps, tables
from brickprof.reports.page.curves import curves, told_by_step
from brickprof.reports.page.graph import graph
from brickprof.reports.page.heat import heat_map
from brickprof.reports.page.proof import Prover
from brickprof.reports.page.ranks import ranks
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
    found: dict[str, Any] = {"findings": findings, "curves": [], "heat": None, "graph": graph(diagnosis)}
    if run is None:
        return found
    near = [finding["step"] for finding in findings[:_NEAR_FINDINGS]]
    focus, timed, points = near[0] if near else None, steps.Timed(run), told_by_step(run)
    return found | {
        "curves": curves(run, near, points=points),
        "heat": heat_map(run, focus),
        "ratio": heat_map(run, focus, "update"),
        "budget": steps.budget(timed, focus),
        "timeline": steps.timeline(timed, focus),
        "traffic": resources.traffic(run, near),
        "memory": resources.memory(run, near),
        "cards": resources.cards(run, near),
        "ranks": ranks(run, points),
    }


def _body(diagnosis: Diagnosis, run: Run | None, data: dict[str, Any]) -> str:
    prover = Prover(run)
    first, rest = plain.leading(diagnosis)
    words = parts.leading(first, prover) if first is not None else ""
    picture = _picture(data, run)
    top = f'<div class="words">{words}</div>{picture}' if words else picture
    below = [block for block in _sections(diagnosis, run, data, rest, prover) if block[2]]
    return "\n".join(
        block
        for block in (
            f'<header><span class="brand">brickprof</span><span class="dim">{parts.about(diagnosis)}</span>'
            '<button type="button" id="theme">Dark</button></header>',
            f"<main>{parts.verdict(diagnosis)}",
            sections.navigation([(identity, name) for identity, name, _ in below]),
            f'<section id="first" class="{"split" if words else "whole"}" aria-label="What happened">{top}</section>'
            if top
            else "",
            *(body for _, _, body in below),
            "</main>",
        )
        if block
    )


def _sections(
    diagnosis: Diagnosis, run: Run | None, data: dict[str, Any], rest: tuple[Any, ...], prover: Prover
) -> list[tuple[str, str, str]]:
    """What stands below the first finding: id, a word for it, and HTML, empty where there is no evidence for it."""
    cards = data.get("cards") or []
    names = ", ".join(resources.card_names(run)) if run is not None and cards else ""
    return [
        ("others", "Findings" if rest and rest[0].severity is not Severity.INFO else "Notes",
         parts.others(rest, prover, len(diagnosis.findings) - len(rest) + 1)),
        ("course", "Course", sections.course() if data["curves"] else ""),
        ("by-rank", "Ranks", sections.ranks(data.get("ranks"))),
        ("layers", "Layers", sections.layers(data)),
        ("time", "Time", sections.times(data.get("budget"))),
        ("bricks-in-time", "Timeline", sections.timeline(data.get("timeline"))),
        ("bricks", "Bricks", tables.bricks(run)),
        ("budgets", "Budgets", tables.budgets(diagnosis)),
        ("kernels", "Kernels", tables.kernels(run, diagnosis)),
        ("traffic-use", "Transfers", sections.use(
            "traffic", "Copies and host reads", data.get("traffic") or [], after=tables.moved(diagnosis))),
        ("memory-use", "Memory", sections.use("memory", "Memory", data.get("memory") or [])),
        ("cards-use", "GPU", sections.use("cards", "GPU", cards, aside=parts.told(names, 200))),
        ("contracts", "Contracts", tables.contracts(diagnosis)),
        ("holdings", "Log", tables.holdings(run, diagnosis)),
    ]  # fmt: skip


def _picture(data: dict[str, Any], run: Run | None) -> str:
    """What proves it: the gradients by layer and step, and the loss around the step where it began."""
    heat = data["heat"]
    figures = ""
    if heat is not None:
        shared = " A column of several steps shows their mean, or what is ten times off." if heat["shared"] else ""
        note = f"Cells marked × are NaN or Inf.{shared} {sections.KEYS}"
        figures = sections.figure("heat", "log10 |grad| by layer and step", note)
    if data["curves"] and data["findings"]:  # of a run without any, the course right below is all there is to see
        figures += sections.figure("proof", "Around the step where it began", "" if heat else sections.KEYS)
    if not figures and not data["curves"]:
        why = "nothing that could be drawn was recorded" if run is not None else "the run itself was not at hand"
        return f'<p class="dim">No pictures: {why}.</p>'
    return f'<div class="picture">{figures}</div>' if figures else ""


REPORT = render
