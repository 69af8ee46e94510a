"""Numbers as a small curve of characters.

Enters: a ``Series`` and a size. Leaves: rows of characters: dots of Braille, two by four to a character, or stars where
the terminal has only ASCII. Where a stretch of steps shares a column, everything between its lowest and its highest is
drawn. A column with a value that is not finite says so in its top row, by a letter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brickprof.reports.live.scene import Point

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-=+*#@"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_FILLED = tuple(
    tuple(tuple(sum(dots[above : below + 1]) for below in range(4)) for above in range(4)) for dots in _DOTS
)
"""The dots of one side of a character from one row of it to another."""
_BRAILLE = (" ", *(chr(0x2800 + dots) for dots in range(1, 256)))
_DECADES = 2.0


@dataclass(frozen=True, slots=True)
class Plot:
    rows: tuple[str, ...]
    odd: tuple[int, ...] = ()
    """Columns of the top row that hold a letter."""
    low: float = math.nan
    high: float = math.nan
    log: bool = False


@dataclass(slots=True)
class _Column:
    low: float = math.inf
    high: float = -math.inf
    odd: str = ""


def plot(points: Sequence[Point], width: int, height: int, *, braille: bool = True) -> Plot:
    """The curve of ``points`` in ``width`` by ``height`` characters."""
    across, down = (2, 4) if braille else (1, 1)
    columns = _columns(points, width * across)
    finite = [column for column in columns if column.low <= column.high]
    marked, letters = _letters(columns, width, across)
    if not finite:
        top = "".join(letters.get(place, " ") for place in range(width))
        return Plot((top, *(" " * width for _ in range(height - 1))), marked)
    low, high = min(column.low for column in finite), max(column.high for column in finite)
    log = low > 0 and math.log10(high / low) > _DECADES
    dots = _dots(columns, height * down, low, high, log=log)
    rows = _braille(dots, width, height) if braille else _stars(dots, width, height)
    top = "".join(letters.get(place, mark) for place, mark in enumerate(rows[0])) if letters else rows[0]
    return Plot((top, *rows[1:]), marked, low, high, log)


def bars(points: Sequence[Point], width: int, *, plain: bool = False) -> str:
    """The highest value of each stretch, in one row; a letter where one is not finite."""
    marks = _PLAIN_BARS if plain else _BARS
    columns = _columns(points, min(width, max(len(points), 1)))
    known = [column.high for column in columns if column.low <= column.high]
    if not columns or not (known or any(column.odd for column in columns)):
        return ""
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    scale = (len(marks) - 1) / (high - low) if high > low and math.isfinite(high - low) else 0.0
    return "".join(
        column.odd or (" " if column.low > column.high else marks[round((column.high - low) * scale)])
        for column in columns
    )


def _columns(points: Sequence[Point], count: int) -> list[_Column]:
    if not points or count < 1:
        return []
    first, last = points[0].step, points[-1].step
    span = max(last - first, 1)
    columns = [_Column() for _ in range(count)]
    most = count - 1
    for point in points:
        place = (point.step - first) * most // span
        column = columns[0 if place < 0 else most if place > most else place]
        if point.low < column.low:
            column.low = point.low
        if point.high > column.high:
            column.high = point.high
        if point.odd:
            column.odd = "N" if "N" in (column.odd, point.odd) else point.odd
    return columns


def _dots(columns: list[_Column], height: int, low: float, high: float, *, log: bool) -> list[tuple[int, int] | None]:
    """Of each column the first and the last row, counted from the top; columns without a point are on the way."""
    bottom, top = (math.log10(low), math.log10(high)) if log else (low, high)
    scale = (height - 1) / (top - bottom) if top > bottom and math.isfinite(top - bottom) else 0.0

    def row(value: float) -> int:
        return height - 1 - round(((math.log10(value) if log else value) - bottom) * scale) if scale else height // 2

    found: list[tuple[int, int] | None] = [None] * len(columns)
    last: tuple[int, int] | None = None
    for x, column in enumerate(columns):
        if column.low > column.high:
            last = None if column.odd else last
            continue
        from_row = row(column.high)
        to_row = row(column.low) if column.low < column.high else from_row
        if last is not None:
            _join(found, last, (x, (from_row + to_row) // 2))
        known = found[x]
        found[x] = (from_row, to_row) if known is None else (min(from_row, known[0]), max(to_row, known[1]))
        last = (x, (from_row + to_row) // 2)
    return found


def _join(found: list[tuple[int, int] | None], a: tuple[int, int], b: tuple[int, int]) -> None:
    """A line from one column to a later one: each column between them takes its part of the way."""
    (left, start), (right, end) = a, b
    before = start
    for x in range(left + 1, right + 1):
        here = start + round((end - start) * (x - left) / (right - left))
        stretch = (before + (here > before) - (here < before), here)
        found[x] = (min(stretch), max(stretch))
        before = here


def _braille(dots: list[tuple[int, int] | None], width: int, height: int) -> tuple[str, ...]:
    cells = [[0] * width for _ in range(height)]
    for x, stretch in enumerate(dots):
        if stretch is not None:
            first, last = stretch
            top, bottom, side = first // 4, last // 4, x % 2
            for row in range(top, bottom + 1):
                above, below = first % 4 if row == top else 0, last % 4 if row == bottom else 3
                cells[row][x // 2] |= _FILLED[side][above][below]
    return tuple("".join(map(_BRAILLE.__getitem__, row)) for row in cells)


def _stars(dots: list[tuple[int, int] | None], width: int, height: int) -> tuple[str, ...]:
    cells = [[" "] * width for _ in range(height)]
    for x, stretch in enumerate(dots):
        if stretch is not None:
            for y in range(stretch[0], stretch[1] + 1):
                cells[y][x] = "*"
    return tuple("".join(row) for row in cells)


def _letters(columns: list[_Column], width: int, across: int) -> tuple[tuple[int, ...], dict[int, str]]:
    letters: dict[int, str] = {}
    for x, column in enumerate(columns):
        if column.odd and letters.get(x // across) != "N":
            letters[min(x // across, width - 1)] = column.odd
    return tuple(sorted(letters)), letters
