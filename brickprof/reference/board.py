"""The zoo's results to read: tables for a terminal, and a page of Markdown.

Enters: marks and their tally. Leaves: rich renderables, or text. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brickprof.reference.score import JUDGED, Mark
from brickprof.reference.tally import Accuracy, Tally
from brickprof.reference.zoo import Specimen
from brickprof.text import clean

_NUMBERS = ("steps", "s", "row")
_COLUMNS = ("fault", "kind", "family", "detected", "contract", "brick", "root cause", "steps", "s", "otherwise found")
_GROUP = ("", "faults", "detected", "contract", "brick", "contract and brick", "root cause")
_LATENCY = ("kind", "faults", "median", "worst", "limit", "within it")
_BINS = ("said", "findings", "mean confidence", "right")


# -- rows, the same for both


def _word(right: bool) -> str:
    return "yes" if right else "NO"


def _instead(mark: Mark) -> str:
    """What stands where the right answer should: the reason of a broken run, or the finding on top."""
    if mark.state != JUDGED:
        return f"{mark.state}: {mark.why}"
    if mark.right:
        return ""
    return _told(mark.found) if mark.found else "nothing"


def _told(found: dict[str, Any]) -> str:
    where = f" at {found['brick']}" if found.get("brick") else ""
    return f"{found.get('contract')} {found.get('root_cause')}{where}"


def _fault(mark: Mark) -> tuple[str, ...]:
    late = "" if mark.latency is None else str(mark.latency)
    if not mark.counts:
        return (mark.id, mark.kind, mark.family, "-", "-", "-", "-", "", "", _instead(mark))
    words = (_word(right) for right in (mark.detected, mark.contract, mark.brick, mark.root_cause))
    return (mark.id, mark.kind, mark.family, *words, late, f"{mark.seconds:.1f}", _instead(mark))


def _group(name: str, accuracy: Accuracy) -> tuple[str, ...]:
    shares = (accuracy.detected, accuracy.contract, accuracy.brick, accuracy.placed, accuracy.root_cause)
    return (name, str(accuracy.detected.of), *(f"{100 * (share.value or 0):.0f} %" for share in shares))


def _groups(tally: Tally) -> list[tuple[str, ...]]:
    rows = [_group(name, accuracy) for name, accuracy in (tally.by_kind | tally.by_family).items()]
    return [*rows, _group("all", tally.faults)]


def _latencies(tally: Tally) -> list[tuple[str, ...]]:
    return [
        (
            kind, str(late.count), f"{late.median:g}", str(late.worst),
            "-" if late.limit is None else str(late.limit), "-" if late.within is None else str(late.within),
        )
        for kind, late in tally.latency.items()
    ]  # fmt: skip


def _bins(tally: Tally) -> list[tuple[str, ...]]:
    return [
        (f"{100 * one.low:.0f}-{100 * one.high:.0f} %", str(one.count), f"{one.confidence:.2f}", f"{one.right:.2f}")
        for one in tally.calibration.bins
    ]


def _goals(tally: Tally) -> list[str]:
    return [
        f"{goal.name}: {goal.reached}, wanted {'all' if goal.wanted == 1 else f'{100 * goal.wanted:.0f} %'}"
        + ("" if goal.met else ", MISSED")
        for goal in tally.goals
        if goal.reached.of
    ]


def _states(tally: Tally) -> str:
    return ", ".join(f"{count} {state}" for state, count in tally.states.items())


# -- a terminal


def listing(specimens: Iterable[Specimen]) -> RenderableType:
    table = _table("id", "kind", "family", "needs", "title")
    for one in specimens:
        table.add_row(one.id, one.kind, one.family, one.needs, clean(one.title))
    return table


def shown(marks: Sequence[Mark], tally: Tally) -> RenderableType:
    """Every fault, every control that was not left alone, and the figures."""
    parts: list[RenderableType] = []
    faults = [mark for mark in marks if not mark.healthy]
    loud = [mark for mark in marks if mark.healthy and not mark.right]
    if faults:
        parts += [_filled(_COLUMNS, map(_fault, faults)), _filled(_GROUP, _groups(tally))]
    if tally.latency:
        parts.append(_filled(_LATENCY, _latencies(tally)))
    if tally.calibration.bins:
        parts += [_filled(_BINS, _bins(tally)), Text(f"Brier score {tally.calibration.brier:.3f}\n")]
    if loud:
        parts.append(_filled(("control", "family", "s", "what was said"), map(_control, loud)))
    return Group(*parts, Text(_states(tally), "dim"), *(_goal_line(line) for line in _goals(tally)))


def _control(mark: Mark) -> tuple[str, ...]:
    return (mark.id, mark.family, f"{mark.seconds:.1f}", _instead(mark))


def _goal_line(line: str) -> Text:
    return Text(line, "bold red" if line.endswith("MISSED") else "bold green")


def _filled(columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = _table(*columns)
    for row in rows:
        table.add_row(*(Text(clean(cell), "red" if cell == "NO" else "") for cell in row))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    return table


# -- a page


def markdown(marks: Sequence[Mark], tally: Tally) -> str:
    """All of it: the goals, the groups, every fault and every control."""
    faults = [mark for mark in marks if not mark.healthy]
    controls = [mark for mark in marks if mark.healthy]
    parts = ["\n".join(f"- {line}" for line in [*_goals(tally), f"runs: {_states(tally)}"])]
    if faults:
        parts += ["### Accuracy", _lines(_GROUP, _groups(tally))]
    if tally.latency:
        parts += ["### Latency in steps", _lines(_LATENCY, _latencies(tally))]
    if tally.calibration.bins:
        parts += ["### Confidence", _lines(_BINS, _bins(tally)), f"Brier score {tally.calibration.brier:.3f}."]
    if faults:
        parts += ["### Faults", _lines(_COLUMNS, map(_fault, faults))]
    if controls:
        parts += ["### Healthy runs", _lines(("control", "family", "title", "left alone"), map(_quiet, controls))]
    return "\n\n".join(parts) + "\n"


def _quiet(mark: Mark) -> tuple[str, ...]:
    return (mark.id, mark.family, mark.title, "yes" if mark.right else _instead(mark))


def _lines(columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(clean(cell).replace('|', '/') for cell in row)} |" for row in cells)
