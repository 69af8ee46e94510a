"""Gradients by block and step, as rows of characters.

Enters: a ``Heat`` and a size. Leaves: for each row its label and its cells, each a character and a level. The levels
have characters of their own, so that colour only repeats what they say: N is NaN, I is Inf, 0 is all zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brickprof.reports.live.scene import Heat

LEVELS = "·░▒▓█"
PLAIN_LEVELS = ".:+*#"
_DECADES = 4.0

Cell = float | str | None


@dataclass(frozen=True, slots=True)
class Map:
    labels: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    first: int = 0
    last: int = 0


def heat_map(heat: Heat, width: int, height: int, *, plain: bool = False) -> Map:
    """The last ``width`` steps in at most ``height`` rows."""
    if not heat or width < 1 or height < 1:
        return Map()
    layers, cells = folded(heat.layers, [row[-width:] for row in heat.cells], height)
    numbers = [cell for row in cells for cell in row if cell.__class__ is float]
    low, high = _limits(numbers) if numbers else (None, None)
    marks = PLAIN_LEVELS if plain else LEVELS
    rows = tuple(_marked(row, low or 0.0, high or 0.0, marks) for row in cells)
    steps = heat.steps[-width:]
    return Map(tuple(layers), rows, low, high, steps[0], steps[-1])


def _limits(numbers: list[float]) -> tuple[float, float]:
    """The smallest and the largest that get a level of their own: one that exploded must not flatten the rest."""
    ordered = sorted(numbers)
    middle = ordered[len(ordered) // 2]
    return max(ordered[0], middle - _DECADES), min(ordered[-1], middle + _DECADES)


def folded(layers: Sequence[str], cells: Sequence[Sequence[Cell]], most: int) -> tuple[list[str], list[list[Cell]]]:
    """Layers folded into the modules that hold them, then neighbours into one another, until there are ``most``."""
    parts = [layer.split(".") for layer in layers]
    deepest = max(map(len, parts))
    counts = {depth: len({tuple(part[:depth]) for part in parts}) for depth in range(1, deepest + 1)}
    depth = max((depth for depth, count in counts.items() if count <= most), default=1)
    if depth < deepest and 2 * counts[depth] < most:
        depth += 1  # neighbours share a row rather than all blocks one
    labels = [".".join(part[:depth]) for part in parts]
    groups: dict[str, list[Sequence[Cell]]] = {}
    for label, row in zip(labels, cells, strict=True):
        groups.setdefault(label, []).append(row)
    names, rows = list(groups), [_worst_of(rows) for rows in groups.values()]
    if len(names) <= most:
        return names, rows
    edges = [len(names) * at // most for at in range(most + 1)]
    spans = [(edges[at], edges[at + 1]) for at in range(most)]
    return (
        [names[a] if b - a == 1 else _between(names[a], names[b - 1]) for a, b in spans],
        [_worst_of(rows[a:b]) for a, b in spans],
    )


def _between(first: str, last: str) -> str:
    """ "blocks.0 … 3": what two neighbours have in common is said once."""
    parent = first.rpartition(".")[0]
    same = parent and last.rpartition(".")[0] == parent
    return f"{first} … {last.rpartition('.')[2] if same else last}"


def _worst_of(rows: Sequence[Sequence[Cell]]) -> list[Cell]:
    if len(rows) == 1:
        return list(rows[0])
    try:
        return list(map(max, *rows))  # numbers only, as nearly always: see below
    except TypeError:
        return [_worst(column) for column in zip(*rows, strict=True)]


def _worst(cells: Sequence[Cell]) -> Cell:
    """NaN before Inf before the largest number before zero."""
    try:
        return max(cells)  # type: ignore[type-var]  # numbers only, as nearly always; "N", "I" and "0" have this order
    except TypeError:
        pass
    known = [cell for cell in cells if cell is not None]
    numbers = [cell for cell in known if isinstance(cell, float)]
    if "N" in known:
        return "N"
    if "I" in known:
        return "I"
    return max(numbers) if numbers else "0" if known else None


def _marked(row: Sequence[Cell], low: float, high: float, marks: str) -> str:
    """The characters of a row. A long map has thousands of cells, several times a second: no call for each."""
    most = len(marks) - 1
    if high <= low:
        low, high = low - 0.5, high + 0.5
    scale = (len(marks) - 1e-6) / (high - low)
    return "".join([
        " " if cell is None else cell if isinstance(cell, str)
        else marks[0 if cell < low else most if cell >= high else int((cell - low) * scale)]
        for cell in row
    ])  # fmt: skip
