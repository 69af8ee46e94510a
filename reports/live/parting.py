"""Where two runs part, as JSON for a page.

Enters: a ``Comparison``. Leaves: a sentence, the first difference, and a row for each quantity; foreign strings are
cleaned, and what is not finite is a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.reports.comparison import portable
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.compare import Comparison, Difference, Row


def parting(comparison: Comparison) -> dict[str, Any]:
    first = comparison.first
    told: dict[str, Any] = portable(
        {
            "same": comparison.same,
            "sentence": _sentence(comparison),
            "step": first.step if first is not None else None,
            "equal_until": comparison.equal_until,
            "steps": list(comparison.steps),
            "rows": [_row(row) for row in comparison.rows],
        }
    )
    return told


def _sentence(comparison: Comparison) -> str:
    first = comparison.first
    if first is None:
        values = sum(row.compared for row in comparison.rows)
        return f"{values:,} values of {min(comparison.steps):,} steps are equal to the bit"
    return f"they part in step {first.step:,}: the {clean(first.what)}{_place(first)}"


def _place(first: Difference) -> str:
    name = clean(first.tensor or first.brick, limit=120)
    if not name:
        return ""
    return f" {name}" if first.what == "setting" else f" of {name}"


def _row(row: Row) -> dict[str, Any]:
    first = row.first
    return {
        "what": clean(row.what, limit=80),
        "compared": row.compared,
        "different": row.different,
        "step": first.step if first is not None else None,
        "at": clean(first.tensor or first.brick, limit=120) if first is not None else "",
        "a": _value(first.a) if first is not None else "",
        "b": _value(first.b) if first is not None else "",
    }


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value & 0xFFFFFFFFFFFFFFFF:x}"  # bits
    return clean(value, limit=120)
