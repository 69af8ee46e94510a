"""The gradients of a run by layer and step: the picture that shows where it began.

Enters: a ``Run``, and the step that matters most. Leaves: the cells of a heat map as plain data: 100 x log10 |grad| of
each layer, with marks for what is not finite. A layer of several tensors shows the largest of their norms. Long runs share a
column among steps, and it shows the largest of them; the steps around the one that matters keep a column each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.records import ROLES
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run

MOST_ROWS, MOST_COLUMNS = 128, 400
NEAR = 20
NAN, INF, ZERO = 99_999, 99_998, -99_999
"""Cells that are no logarithm; a cell that was not looked at is null."""


def heat_map(run: Run, focus: int | None = None) -> dict[str, Any] | None:
    """The map, or None where no gradients were sampled."""
    names, steps, rows, sizes, odd = _cells(run)
    if not len(steps):
        return None
    layers, folded = _folded(names)
    edges = _columns(np.unique(steps), focus)
    column = np.searchsorted(edges, steps, side="right") - 1
    grid = _grid(folded[rows], column, sizes, odd, (len(layers), len(edges)))
    known = np.unique(steps)
    last = [int(known[np.searchsorted(known, edge) - 1]) for edge in edges[1:]] + [int(known[-1])]
    return {
        "rows": [clean(layer, limit=120) for layer in layers],
        "first": edges.tolist(),
        "last": last,
        "cells": grid,
        "shared": any(a != b for a, b in zip(edges.tolist(), last, strict=True)),
        "folded": len(layers) < len(names),
    }


def _cells(run: Run) -> tuple[list[str], Any, Any, Any, Any]:
    """Of each sampled gradient: step, row, |grad|, and 2 for NaN, 1 for Inf; and the names of the rows."""
    numbers: dict[str, int] = {}
    columns: list[tuple[Any, ...]] = []
    for part in run.parts:
        table = part.samples[0]
        if not table.num_rows:
            continue
        chosen = np.flatnonzero(_column(table, "role") == ROLES.index("grad"))
        brick = _column(table, "brick")[chosen].astype(np.int64)
        seen = np.unique(brick)
        named = [part.names.brick(int(number)).name(qualified=run.qualified) or "model" for number in seen]
        row = np.array([numbers.setdefault(name, len(numbers)) for name in named], np.int64)
        l2, absmax = _column(table, "l2")[chosen], _column(table, "absmax")[chosen]
        size = np.where(np.isnan(l2), absmax, l2)
        nan, inf = (np.nan_to_num(_column(table, name)[chosen]) > 0 for name in ("nan", "inf"))
        odd = np.where(nan, 2, np.where(inf | np.isinf(size), 1, 0))
        columns.append((_column(table, "step")[chosen].astype(np.int64), row[np.searchsorted(seen, brick)], size, odd))
    if not columns:
        return [], *(np.empty(0),) * 4
    return list(numbers), *(np.concatenate(list(each)) for each in zip(*columns, strict=True))


def _column(table: Any, name: str) -> Any:
    """A column as numbers; what was not measured is nan."""
    return table[name].to_numpy(zero_copy_only=False) if table[name].null_count == 0 else _with_gaps(table[name])


def _with_gaps(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _folded(names: list[str]) -> tuple[list[str], Any]:
    """Layers for the rows: the names themselves, or the modules that hold them where there are too many."""
    parts = [name.split(".") for name in names]
    for depth in range(max(map(len, parts)), 0, -1):
        shorter = [".".join(part[:depth]) for part in parts]
        layers = list(dict.fromkeys(shorter))
        if len(layers) <= MOST_ROWS:
            break
    else:
        layers = [*layers[: MOST_ROWS - 1], "(the others)"]
    place = {layer: number for number, layer in enumerate(layers)}
    return layers, np.array([place.get(name, len(layers) - 1) for name in shorter], np.int64)


def _columns(steps: Any, focus: int | None) -> Any:
    """The first step of each column."""
    if len(steps) <= MOST_COLUMNS:
        return steps
    at = len(steps) - 1 if focus is None else int(np.searchsorted(steps, focus))
    single = np.arange(max(at - NEAR, 0), min(at + NEAR + 1, len(steps)))
    evenly = np.linspace(0, len(steps) - 1, MOST_COLUMNS - len(single), dtype=np.int64)
    after = [single[-1] + 1] if single[-1] + 1 < len(steps) else []
    return steps[np.unique(np.concatenate([evenly, single, np.asarray(after, np.int64)]))]


def _grid(row: Any, column: Any, size: Any, odd: Any, shape: tuple[int, int]) -> list[list[int | None]]:
    flat = row * shape[1] + column
    largest = np.full(shape[0] * shape[1], -1.0)
    np.maximum.at(largest, flat, np.where(np.isfinite(size), size, -1.0))
    worst = np.zeros(shape[0] * shape[1], np.int64)
    np.maximum.at(worst, flat, odd)
    with np.errstate(divide="ignore"):
        scaled = np.where(largest > 0, np.round(100 * np.log10(np.maximum(largest, 1e-300))), ZERO).astype(np.int64)
    scaled = np.where(worst == 2, NAN, np.where(worst == 1, INF, scaled))
    blank = (largest < 0) & (worst == 0)
    cells = [None if empty else int(value) for empty, value in zip(blank, scaled.tolist(), strict=True)]
    return [cells[start : start + shape[1]] for start in range(0, len(cells), shape[1])]
