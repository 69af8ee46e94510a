"""A curve in one line of text: bars of eight heights, and the same in words for who cannot see them.

Enters: one of the ``curves`` of a diagnosis. Leaves: plain text. ``x`` stands where something was not finite, a dot
where nothing was told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from brickprof.text import clean

HEIGHTS = "▁▂▃▄▅▆▇█"
ASCII = dict(zip(HEIGHTS, "_:=+*%#@", strict=True))
BROKEN, UNTOLD = "x", "·"
WIDTH = 48
_NARROWEST = 12
_BY_DIGITS = 1e3
"""Highest over lowest from which on heights count digits."""

Cell = float | str | None
"""A number; the word for one that is not finite; None where there is none."""


def room(width: int | None, taken: int) -> int:
    """How many bars a line has room for, where ``taken`` columns are used already."""
    return WIDTH if width is None else max(_NARROWEST, min(WIDTH, width - taken))


def bars(curve: dict[str, Any], width: int = WIDTH) -> str:
    cells = curve.get("cells")
    return sparkline(cells, width) if isinstance(cells, list) else ""


def sparkline(cells: Iterable[Cell], width: int = WIDTH) -> str:
    given = fewer([_known(cell) for cell in cells], width)
    finite = [cell for cell in given if isinstance(cell, float)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low > 0 and high / low > _BY_DIGITS:
        given = [math.log10(cell) if isinstance(cell, float) else cell for cell in given]
        low, high = math.log10(low), math.log10(high)
    # By halves: the distance between two numbers may be larger than any number.
    scale = (len(HEIGHTS) - 1) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.0
    return "".join(_bar(cell, low, scale) for cell in given)


def fewer(cells: Sequence[Cell], width: int) -> list[Cell]:
    """At most ``width`` cells: of those that share one, what is not finite, else what stands out most."""
    if len(cells) <= width:
        return list(cells)
    return [_telling(cells[i * len(cells) // width : (i + 1) * len(cells) // width]) for i in range(width)]


def ends(curve: dict[str, Any]) -> str:
    """Where a curve began and where it ended."""
    return f"{_value(curve.get('first'))} → {_value(curve.get('last'))}"


def said(curve: dict[str, Any], extreme: str) -> str:
    """The curve in words: its ends, its ``lowest`` or ``highest``, and where it was not finite."""
    parts = [ends(curve)]
    if isinstance(most := curve.get(extreme), dict) and most not in (curve.get("first"), curve.get("last")):
        parts.append(f"{extreme} {_value(most)} in step {_whole(most.get('step'))}")
    if isinstance(broken := curve.get("not_finite"), dict):
        count, first = _whole(broken.get("points")), _whole(broken.get("first_step"))
        parts.append(f"{count} of {_whole(curve.get('points'))} not finite, the first in step {first}")
    return " · ".join(parts)


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "nan" if value is None else str(value)[:8]


def _known(cell: Any) -> Cell:
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return float(cell) if math.isfinite(cell) else str(float(cell))
    return cell if cell is None else str(cell)


def _telling(cells: Sequence[Cell]) -> Cell:
    broken = next((cell for cell in cells if isinstance(cell, str)), None)
    finite = sorted(cell for cell in cells if isinstance(cell, float))
    if broken is not None or not finite:
        return broken
    middle = finite[len(finite) // 2]
    return max(finite, key=lambda cell: abs(cell - middle))


def _bar(cell: Cell, low: float, scale: float) -> str:
    if cell is None:
        return UNTOLD
    return BROKEN if isinstance(cell, str) else HEIGHTS[round((cell / 2 - low / 2) * scale)]


def _value(point: Any) -> str:
    return clean(number(point.get("value"))) if isinstance(point, dict) else "nan"


def _whole(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
