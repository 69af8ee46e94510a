"""Bricks over their declared budget, and those that were traced in full because their times strayed, in lines.

Enters: the ``run`` part of a diagnosis. Leaves: lines of text, each string of the run's cleaned; none where nothing is
over its budget and nothing strayed.
"""

from __future__ import annotations

from typing import Any

from brickprof.text import clean


def lines(run: dict[str, Any]) -> list[str]:
    return [*map(_over, over(run)), *unsteady(run)]


def over(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The bricks with a declared budget that are over it, the worst first."""
    return _rows(run, "over_budget")


def unsteady(run: dict[str, Any]) -> list[str]:
    """Each brick for which steps were traced in full, with the reason."""
    return [_strayed(row) for row in _rows(run, "unsteady")]


def name(row: dict[str, Any]) -> str:
    """A brick as budgets call it: its name alone is its forward."""
    ending = " backward" if row.get("phase") == "backward" else ""
    return clean(row.get("brick") or "a brick", limit=80) + ending


def us(value: Any) -> str:
    return f"{value:,.0f}" if _is_number(value) and abs(value) >= 10 else f"{value:.3g}" if _is_number(value) else "?"


def share(value: Any) -> str:
    return f"{100 * value:.0f} %" if _is_number(value) else "?"


def _over(row: dict[str, Any]) -> str:
    on = " on the host" if row.get("on") == "host" else ""
    fares = f"{us(row.get('us'))} us of {us(row.get('budget_us'))}{on}, efficiency {share(row.get('efficiency'))}"
    return f"over budget: {name(row)} {fares}, in {us(row.get('over'))} of {us(row.get('steps'))} steps"


def _strayed(row: dict[str, Any]) -> str:
    reason, step = row.get("reason"), us(row.get("step"))
    why = [f"its times scatter by {share(row.get('cv'))}"] if reason in ("cv_exceeded", "both") else []
    if reason in ("efficiency_low", "both"):
        of = "its declared budget" if row.get("declared") else "what it took at first"
        why.append(f"efficiency {share(row.get('efficiency'))} of {of}, {us(row.get('budget_us'))} us")
    said = " and ".join(why) or clean(reason or "no reason is told", limit=80)
    return f"unsteady: {name(row)} {us(row.get('us'))} us in step {step}, {said}; the next steps were traced in full"


def _rows(run: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = run.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list | tuple) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
