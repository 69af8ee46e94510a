"""The gradients and the updates of a run by layer and step: the pictures that show where it began.

Enters: a ``Run``, and the step that matters most. Leaves: the cells of a heat map as plain data: 100 x log10 |grad| of
each layer, or of how large its update was beside its weights, with marks for what is not finite. A layer of several
tensors shows the largest of their numbers. Long runs share a column among steps; it shows their mean, or what is ten
times off. Steps near the one that matters keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.records import ROLES
from brickprof.run.columns import numbers as floats
from brickprof.run.columns import present, rows, values
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run
    from brickprof.run.parts import Part

MOST_ROWS, MOST_COLUMNS = 128, 400
NEAR = 20
_PIECE = 1 << 18
_NONE = -1_000.0
"""Stands for the logarithm of zero, below every other."""
NAN, INF, ZERO = 99_999, 99_998, -99_999
"""Cells that are no logarithm; a cell that was not looked at is null."""


def heat_map(run: Run, focus: int | None = None, role: str = "grad") -> dict[str, Any] | None:
    """The map of gradients or, with role ``update``, of update/weight; None where none were sampled."""
    steps, numbers = _seen(run, role)
    if not len(steps):
        return None
    layers, folded = _folded(list(numbers))
    edges = _columns(steps, focus)
    grid = _Grid(len(layers), len(steps))
    columns, sizes = _SIZES[role]
    for part, table in _pieces(run, role, ("step", "brick", *columns)):
        brick, row = _rows(part, table, numbers, run.qualified)
        column = np.searchsorted(steps, _column(table, "step"))
        grid.add(folded[row[np.searchsorted(brick, _column(table, "brick"))]], column, *sizes(table))
    last = [int(steps[np.searchsorted(steps, edge) - 1]) for edge in edges[1:]] + [int(steps[-1])]
    return {
        "rows": [clean(layer, limit=120) for layer in layers],
        "first": edges.tolist(),
        "last": last,
        "cells": grid.cells(np.searchsorted(steps, edges)),
        "shared": any(a != b for a, b in zip(edges.tolist(), last, strict=True)),
    }


def _pieces(run: Run, role: str, columns: Sequence[str]) -> Iterator[tuple[Part, Any]]:
    """The samples of one role, some at a time: a long run has millions of them."""
    told = "ratio" if role == "update" else "role"
    for part in run.parts:
        table = part.samples[0]
        for start in range(0, table.num_rows, _PIECE):
            piece = table.slice(start, _PIECE)
            mine = values(piece["role"]) == ROLES.index(role)
            if piece[told].null_count:
                mine &= present(piece[told])
            if mine.any():
                chosen = piece.select(columns)
                yield part, chosen if mine.all() else rows(chosen, mine)


def _seen(run: Run, role: str) -> tuple[Any, dict[str, int]]:
    """The steps that have such samples, and a row for each layer, in the order in which the model names them."""
    steps: list[Any] = [np.empty(0, np.int64)]
    numbers: dict[str, int] = {}
    for part, table in _pieces(run, role, ("step", "brick")):
        steps.append(_distinct(table["step"]))
        _rows(part, table, numbers, run.qualified)
    return np.unique(np.concatenate(steps)), numbers


def _rows(part: Part, table: Any, numbers: dict[str, int], qualified: bool) -> tuple[Any, Any]:
    """The bricks of a table, ascending, and the row of each; a brick that is new gets the next."""
    bricks = _distinct(table["brick"])
    names = [part.names.brick(int(number)).name(qualified=qualified) or "model" for number in bricks]
    return bricks, np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def _column(table: Any, name: str) -> Any:
    """A column as numbers; what was not measured is nan."""
    return floats(table[name]) if table[name].null_count else values(table[name])


def _distinct(column: Any) -> Any:
    import pyarrow.compute as pc

    return np.sort(values(pc.unique(column)))


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


def _norms(table: Any) -> tuple[Any, Any, Any]:
    """How large gradients are, and which hold NaN or Inf."""
    l2, absmax = _column(table, "l2"), _column(table, "absmax")
    nan, inf = (np.nan_to_num(_column(table, name)) > 0 for name in ("nan", "inf"))
    return np.where(np.isnan(l2), absmax, l2), nan, inf


def _ratios(table: Any) -> tuple[Any, Any, Any]:
    ratio = _column(table, "ratio")
    return ratio, np.isnan(ratio), np.isinf(ratio)


_SIZES = {"grad": (("nan", "inf", "absmax", "l2"), _norms), "update": (("ratio",), _ratios)}
"""How large the samples of a role are, and what of them says so."""


class _Grid:
    """Of each layer and step the largest number, as a logarithm, and whether one of them was not finite."""

    def __init__(self, rows: int, steps: int) -> None:
        self._shape = rows, steps
        self._logs = np.full(rows * steps, -np.inf, np.float32)
        self._odd = np.zeros(rows * steps, np.int8)

    def add(self, row: Any, column: Any, size: Any, nan: Any, inf: Any) -> None:
        with np.errstate(all="ignore"):
            logs = np.where(size > 0, np.log10(size), np.where(size == 0, _NONE, -np.inf))
        cell = row * self._shape[1] + column
        np.maximum.at(self._logs, cell, np.where(np.isinf(size), -np.inf, logs).astype(np.float32))
        np.maximum.at(self._odd, cell, np.where(nan, 2, np.where(inf | np.isinf(size), 1, 0)).astype(np.int8))

    def cells(self, starts: Any) -> list[list[int | None]]:
        """The cells of columns that begin at these steps."""
        logs, odd = self._logs.reshape(self._shape), self._odd.reshape(self._shape)
        known = logs > _NONE
        count = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
        mean = np.add.reduceat(np.where(known, logs, 0), starts, axis=1) / np.maximum(count, 1)
        top = np.maximum.reduceat(logs, starts, axis=1)
        low = np.minimum.reduceat(np.where(known, logs, np.inf), starts, axis=1)
        above, below = top - mean, mean - low
        value = np.where(np.maximum(above, below) > 1, np.where(above >= below, top, low), mean)
        value = np.where(count > 0, np.round(100 * np.where(count > 0, value, 0)), ZERO).astype(np.int64)
        worst = np.maximum.reduceat(odd, starts, axis=1)
        value = np.where(worst == 2, NAN, np.where(worst == 1, INF, value))
        blank = ~np.isfinite(top) & (worst == 0)
        return [
            [None if empty else code for empty, code in zip(*row, strict=True)]
            for row in zip(blank.tolist(), value.tolist(), strict=True)
        ]
