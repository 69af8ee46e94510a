"""Small pictures for the output of a cell: SVG without a script, in the colours of the notebook around it.

Enters: series (``brickprof.reports.page.curves``) and the heat map of gradients (``brickprof.reports.page.heat``).
Leaves: SVG of some ten kilobytes, however long the run: of many steps it shows the largest, what is not finite
included. Axes and words take the colour of the text around them, so they can be read on light and on dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from brickprof.reports.page.heat import INF, NAN, ZERO
from brickprof.reports.page.parts import told

MOST_POINTS = 400
MOST_ROWS, MOST_COLUMNS = 32, 96
_WIDTH, _LEFT, _HEIGHT, _ROW = 460, 56, 74, 12
_LINE, _BAD, _NOTHING = "#3f83c8", "#d1343f", "#8886"
_MOST_MARKS = 60
_LABEL = 17
_LEVELS = 14
_FAR = 200
"""Two decades."""
_VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))

Marks = Sequence[tuple[str, int]]
Cell = int | None


def shade(share: float) -> str:
    """The colour of a value between the lowest (0) and the highest (1)."""
    place = min(max(share, 0.0), 1.0) * (len(_VIRIDIS) - 1)
    at = min(int(place), len(_VIRIDIS) - 2)
    mixed = (round(a + (b - a) * (place - at)) for a, b in zip(_VIRIDIS[at], _VIRIDIS[at + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


# -- curves


def curves(series: Sequence[dict[str, Any]], marks: Marks = ()) -> str:
    """The loss, and the gradient's norm below it, on one axis of steps; "" where there is neither."""
    chosen = [one for name in ("loss", "|grad|") if (one := _named(series, name)) is not None and one["steps"]]
    if not chosen:
        return ""
    first, last = min(one["steps"][0] for one in chosen), max(one["steps"][-1] for one in chosen)
    panels = [_panel(one, number, (first, last)) for number, one in enumerate(chosen)]
    height = len(chosen) * (_HEIGHT + 14) + 16
    ends = (
        f'<text x="{_LEFT}" y="{height - 4}">step {first:,}</text>'
        f'<text x="{_WIDTH - 4}" y="{height - 4}" text-anchor="end">{last:,}</text>'
    )
    lines = _findings(marks, (first, last), height - 16)
    names = " and ".join(one["name"] for one in chosen)
    return _svg(height, f"{names} by step", "".join(panels) + lines + ends)


def _named(series: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The series of that name, or the first of its kind: logs name several of one kind behind a colon."""
    kinds = (name, f"{name} before clipping")
    return next((one for kind in kinds for one in series if one["name"].partition(": ")[0] == kind), None)


def _panel(one: dict[str, Any], number: int, ends: tuple[int, int]) -> str:
    top = number * (_HEIGHT + 14) + 12
    known = [value for value in one["values"] if value is not None]
    scaled = one["log"] and all(value > 0 for value in known)
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    heights = [None if value is None else _height(value, low, high, scaled) for value in one["values"]]
    points = [
        None if at is None else (_across(step, ends), top + at) for step, at in zip(one["steps"], heights, strict=True)
    ]
    name = told(one["name"], 40) + (", log scale" if scaled else "")
    labels = (
        f'<text x="{_LEFT}" y="{top - 3}" font-weight="600">{name}</text>'
        f'<text x="{_LEFT - 5}" y="{top + 8}" text-anchor="end">{_number(high)}</text>'
        f'<text x="{_LEFT - 5}" y="{top + _HEIGHT - 2}" text-anchor="end">{_number(low)}</text>'
        if known
        else f'<text x="{_LEFT}" y="{top - 3}" font-weight="600">{name}: nothing finite</text>'
    )
    frame = f'<path d="M{_LEFT} {top}v{_HEIGHT}H{_WIDTH - 4}" fill="none" stroke="currentColor" opacity=".35"/>'
    return frame + labels + _path(points) + _odd(one["odd"], ends, top)


def _height(value: float, low: float, high: float, scaled: bool) -> float:
    if scaled:
        value, low, high = math.log10(value), math.log10(low), math.log10(high)
    share = (value - low) / (high - low) if high > low else 0.5
    return _HEIGHT - 3 - share * (_HEIGHT - 6)


def _across(step: int, ends: tuple[int, int]) -> float:
    first, last = ends
    return _LEFT + (_WIDTH - 6 - _LEFT) * ((step - first) / (last - first) if last > first else 0.5)


def _path(points: Iterable[tuple[float, float] | None]) -> str:
    """A line through the points that breaks where one is missing; a point alone is a dot."""
    drawn = []
    for there, group in groupby(points, key=lambda point: point is not None):
        if there:
            run = [f"{x:.1f} {y:.1f}" for x, y in filter(None, group)]
            drawn.append(f"M{run[0]}" + (f"L{' '.join(run[1:])}" if len(run) > 1 else "h.01"))
    style = f'fill="none" stroke="{_LINE}" stroke-width="1.5" stroke-linejoin="round" stroke-linecap="round"'
    return f'<path d="{"".join(drawn)}" {style}/>' if drawn else ""


def _odd(odd: Sequence[Sequence[Any]], ends: tuple[int, int], top: int) -> str:
    """A cross at the top for each step that is not finite; of very many the first and the last."""
    if not odd:
        return ""
    shown = odd if len(odd) <= _MOST_MARKS else [*odd[: _MOST_MARKS // 2], *odd[-_MOST_MARKS // 2 :]]
    crosses = "".join(f"M{_across(step, ends) - 2.5:.1f} {top + 2}l5 5m0-5l-5 5" for step, _ in shown)
    word = " and ".join(dict.fromkeys(str(word) for _, word in odd))
    label = f'<text x="{_WIDTH - 4}" y="{top - 3}" text-anchor="end">× {told(word)} from step {odd[0][0]:,}</text>'
    return f'<path d="{crosses}" fill="none" stroke="{_BAD}" stroke-width="1.3"/>{label}'


def _findings(marks: Marks, ends: tuple[int, int], bottom: int) -> str:
    return "".join(_finding(label, _across(step, ends), bottom) for label, step in marks if ends[0] <= step <= ends[1])


def _finding(label: str, x: float, bottom: int) -> str:
    beside = f'x="{x + 3:.1f}"' if x < _WIDTH - 30 else f'x="{x - 3:.1f}" text-anchor="end"'
    return (
        f'<path d="M{x:.1f} 12V{bottom}" stroke="{_BAD}" stroke-dasharray="3 3" fill="none"/>'
        f'<text {beside} y="{bottom - 3}" fill="{_BAD}">{told(label, 12)}</text>'
    )


# -- the heat map


def heat(found: dict[str, Any], ring: tuple[str, int] | None = None) -> str:
    """log10 |grad| by layer and step; ``ring`` is the brick and the step to mark."""
    rows, cells = _fewer_rows(found["rows"], found["cells"])
    firsts, lasts, cells = _fewer_columns(found["first"], found["last"], cells)
    numbers = [cell for row in cells for cell in row if cell is not None and cell not in (NAN, INF, ZERO)]
    low, high = ends_of(numbers)
    left, width = _LEFT + 50, (_WIDTH - _LEFT - 54) / len(firsts)
    height = len(rows) * _ROW + 44
    body = "".join(
        (
            '<text x="4" y="10" font-weight="600">log10 |grad| by layer and step</text>',
            *(_row_label(name, number, left) for number, name in enumerate(rows)),
            f'<g shape-rendering="crispEdges" transform="translate({left} 16) scale({width:.4f} {_ROW})">',
            f"{_cells(cells, low, high)}</g>",
            _crosses(cells, left, width),
            _ring(ring, rows, firsts, lasts, left, width),
            f'<text x="{left}" y="{height - 16}">step {firsts[0]:,}</text>',
            f'<text x="{_WIDTH - 4}" y="{height - 16}" text-anchor="end">{lasts[-1]:,}</text>',
            _key(low, high, height, left, numbers),
        )
    )
    return _svg(height, "Gradients by layer and step", body)


def _fewer_rows(rows: list[str], cells: list[list[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Layers that fit: where there are too many, the modules that hold them; a module shows its largest."""
    names = list(rows)
    for depth in range(max(name.count(".") for name in rows), -1, -1):
        if len(dict.fromkeys(names)) <= MOST_ROWS:
            break
        names = [".".join(name.split(".")[: depth + 1]) for name in rows]
    kept = list(dict.fromkeys(names))
    if len(kept) > MOST_ROWS:
        place = {name: number * MOST_ROWS // len(kept) for number, name in enumerate(kept)}
        first: dict[int, str] = {}
        for name in kept:
            first.setdefault(place[name], name)
        names = [first[place[name]] for name in names]
        kept = list(dict.fromkeys(names))
    groups = [[row for name, row in zip(names, cells, strict=True) if name == one] for one in kept]
    return kept, [[_largest(column) for column in zip(*group, strict=True)] for group in groups]


def _fewer_columns(
    firsts: list[int], lasts: list[int], cells: list[list[Cell]]
) -> tuple[list[int], list[int], list[list[Cell]]]:
    count = min(len(firsts), MOST_COLUMNS)
    edges = [number * len(firsts) // count for number in range(count + 1)]
    pairs = list(pairwise(edges))
    merged = [[_largest(row[a:b]) for a, b in pairs] for row in cells]
    return [firsts[a] for a, _ in pairs], [lasts[b - 1] for _, b in pairs], merged


def _largest(cells: Iterable[Cell]) -> Cell:
    # NaN and Inf have the highest codes and zero the lowest: the largest is what a reader must not miss.
    return max((cell for cell in cells if cell is not None), default=None)


def ends_of(numbers: list[int]) -> tuple[int, int]:
    """Where the colours begin and end: a few cells that are far off do not take the colours from all others."""
    if not numbers:
        return 0, 0
    ordered = sorted(numbers)
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 20]
    return max(ordered[0], low - _FAR), min(ordered[-1], high + _FAR)


def _cells(cells: list[list[Cell]], low: int, high: int) -> str:
    """One path for each colour; neighbours of one colour are one stroke."""
    strokes: dict[str, list[str]] = {}
    for number, row in enumerate(cells):
        at = 0
        for colour, group in groupby(_colour(cell, low, high) for cell in row):
            length = len(list(group))
            if colour:
                strokes.setdefault(colour, []).append(f"M{at} {number}.5h{length}")
            at += length
    return "".join(f'<path stroke="{colour}" d="{"".join(parts)}"/>' for colour, parts in strokes.items())


def _colour(cell: Cell, low: int, high: int) -> str:
    if cell is None:
        return ""
    if cell in (NAN, INF):
        return _BAD
    if cell == ZERO:
        return _NOTHING
    share = (cell - low) / (high - low) if high > low else 0.5
    return shade(round(share * (_LEVELS - 1)) / (_LEVELS - 1))


def _crosses(cells: list[list[Cell]], left: float, width: float) -> str:
    """Not by colour alone: × for NaN, + for Inf, one for each stretch of a row."""
    marks = []
    for number, row in enumerate(cells):
        at = 0
        for cell, group in groupby(row, key=lambda cell: cell if cell in (NAN, INF) else None):
            length = len(list(group))
            x, y = left + (at + length / 2) * width, 16 + (number + 0.5) * _ROW
            if cell is not None:
                marks.append(
                    f"M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6" if cell == NAN else f"M{x - 4:.1f} {y:.1f}h8m-4-4v8"
                )
            at += length
    return f'<path d="{"".join(marks[:400])}" stroke="#fff" stroke-width="1.4" fill="none"/>' if marks else ""


def _ring(
    ring: tuple[str, int] | None, rows: list[str], firsts: list[int], lasts: list[int], left: float, width: float
) -> str:
    """A frame around the cell in which it began."""
    if ring is None:
        return ""
    row = next((n for n, name in enumerate(rows) if ring[0] == name or ring[0].startswith(f"{name}.")), None)
    column = next((n for n, (a, b) in enumerate(zip(firsts, lasts, strict=True)) if a <= ring[1] <= b), None)
    if row is None or column is None:
        return ""
    wide = max(width, 6)
    x, y = left + (column + 0.5) * width - wide / 2, 16 + row * _ROW
    place = f'x="{x - 2:.1f}" y="{y - 2}" width="{wide + 4:.1f}" height="{_ROW + 4}" rx="3"'
    return (
        f'<rect {place} fill="none" stroke="#fff" stroke-width="3"/>'
        f'<rect {place} fill="none" stroke="{_BAD}" stroke-width="1.8"/>'
    )


def _row_label(name: str, number: int, left: float) -> str:
    shown = name if len(name) <= _LABEL else "…" + name[-(_LABEL - 1) :]
    return f'<text x="{left - 5}" y="{16 + number * _ROW + 9.5}" text-anchor="end">{told(shown)}</text>'


def _key(low: int, high: int, height: int, left: float, numbers: list[int]) -> str:
    if not numbers:
        return f'<text x="{left}" y="{height - 3}">× NaN, + Inf: nothing finite</text>'
    steps = "".join(
        f'<path stroke="{shade(n / (_LEVELS - 1))}" d="M{left + 54 + 6 * n} {height - 6}h6"/>' for n in range(_LEVELS)
    )
    below, above = "≤ " * (min(numbers) < low), "≥ " * (max(numbers) > high)
    return (
        f'<text x="{left + 48}" y="{height - 3}" text-anchor="end">{below}1e{low / 100:+.1f}</text>'
        f'<g stroke-width="8">{steps}</g>'
        f'<text x="{left + 60 + 6 * _LEVELS}" y="{height - 3}">{above}1e{high / 100:+.1f}'
        f'<tspan dx="12">× NaN</tspan><tspan dx="8">+ Inf</tspan><tspan dx="8">grey: zero</tspan></text>'
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.1e}"


def _svg(height: int, title: str, body: str) -> str:
    font = "font-family:system-ui,sans-serif;font-size:10px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" style="max-width:100%;height:auto;{font}" fill="currentColor">'
        f"<title>{told(title)}</title>{body}</svg>"
    )
