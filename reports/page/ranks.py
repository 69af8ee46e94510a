"""The ranks of a run beside each other: who was late, who learnt something else.

Enters: a ``Run``. Leaves: for each thing that ranks can be compared by a map of rank and step as plain data (how far a
rank is off the middle of all in that step), and a row of numbers for each rank; None for a run of one rank. A column of
several steps shows what is furthest off.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brickprof.reports.page.curves import told_by_step
from brickprof.reports.page.heat import INF, NAN

if TYPE_CHECKING:
    from brickprof.reports.page.curves import Points
    from brickprof.run import Run
    from brickprof.run.parts import Part

MOST_COLUMNS = 240
_MOST = 90_000
"""Cells beyond this would be taken for marks."""
_COMPARED = (("step time", "seconds a step"), ("loss", "loss"), ("|grad|", "|grad|"))
_LATE = "lateness"
_BEHIND = 0.05
"""Of a usual step: who is behind by less is in the noise."""
_HARDLY = 1e-6
"""Numbers that differ by less are equal: the same sum in another order."""


def ranks(run: Run, points: dict[str, Points] | None = None) -> dict[str, Any] | None:
    """The maps and the rows of a run of several ranks; ``points`` are what its events tell, where that is at hand."""
    parts = [part for part in run.parts if part.rank >= 0]
    if len(parts) < 2:
        return None
    told = told_by_step(run) if points is None else points
    tables = {name: table for name, source in _COMPARED if source in told and (table := _table(told[source]))}
    if lags := _lags(parts):
        tables = {_LATE: lags, **tables}
    maps = [found for name, table in tables.items() if (found := _map(name, table))]
    return {"maps": maps, "rows": _rows(parts, tables), "late": _LATE in tables} if tables else None


class Table(NamedTuple):
    """A number for each rank and step."""

    ranks: Any
    steps: Any
    values: Any
    there: Any
    """Where there is one at all; NaN is one too."""


def _table(points: Points) -> Table | None:
    numbers, row = np.unique(np.asarray(points[2], np.int64), return_inverse=True)
    steps, column = np.unique(np.asarray(points[0], np.int64), return_inverse=True)
    if len(numbers) < 2:
        return None
    place, cells = row * len(steps) + column, len(numbers) * len(steps)
    shape, count = (len(numbers), len(steps)), np.bincount(place, minlength=cells)
    with np.errstate(all="ignore"):
        mean = np.bincount(place, np.asarray(points[1], np.float64), cells) / count
    return Table(numbers, steps, mean.reshape(shape), count.reshape(shape) > 0)


def _lags(parts: Sequence[Part]) -> Table | None:
    """How long after the first rank each had its loss, in seconds. Clocks of several hosts cannot be compared."""
    hosts = {str(event.fields.get("host")) for part in parts for event in part.events if event.kind == "run"}
    if len(hosts) != 1 or hosts == {"None"}:
        return None
    ends = [{event.step: event.time_ns for event in part.events if event.kind == "loss"} for part in parts]
    steps = sorted(set.intersection(*(set(each) for each in ends)))
    if not steps:
        return None
    times = np.array([[each[step] for step in steps] for each in ends], np.int64)
    behind = (times - times.min(0)) / 1e9
    return Table(np.array([part.rank for part in parts]), np.array(steps), behind, np.ones(times.shape, bool))


def _map(name: str, table: Table) -> dict[str, Any] | None:
    """How far each rank is off, in thousandths of the middle; of lateness in microseconds. None where all are equal."""
    late, values = name == _LATE, table.values
    finite = np.isfinite(values)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step in which no rank is finite has no middle
        middle = np.abs(np.nanmedian(np.where(finite, values, np.nan), axis=0))
        off = 1e6 * values if late else 1e3 * (values - middle) / np.where(middle == 0, np.nan, middle)
    marks = np.where(np.isinf(values), INF, np.where(table.there & np.isnan(values), NAN, 0))
    if not (np.abs(off[np.isfinite(off)]) > 1e3 * _HARDLY).any() and not marks.any():
        return None
    starts = np.unique(np.linspace(0, len(table.steps) - 1, min(MOST_COLUMNS, len(table.steps)), dtype=np.int64))
    ends = [*starts[1:].tolist(), len(table.steps)]
    columns = list(zip(starts.tolist(), ends, strict=True))
    return {
        "name": name,
        "rows": [f"rank {number}" for number in table.ranks.tolist()],
        "first": table.steps[starts].tolist(),
        "last": [int(table.steps[end - 1]) for end in ends],
        "cells": [[_cell(marks[row, a:b], off[row, a:b]) for a, b in columns] for row in range(len(off))],
        "shared": len(starts) < len(table.steps),
        "late": late,
    }


def _cell(marks: Any, off: Any) -> float | None:
    if marks.any():
        return int(marks.max())
    known = off[np.isfinite(off)]
    if not len(known):
        return None
    return max(-_MOST, min(_MOST, round(float(known[np.abs(known).argmax()]), 1)))


def _rows(parts: Sequence[Part], tables: dict[str, Table]) -> list[dict[str, Any]]:
    """A row for each rank; what it is judged by is the share of steps in which it came last."""
    last = _last(tables)
    rows = []
    for part in parts:
        row: dict[str, Any] = {"rank": part.rank, "node": part.coordinates.node, "last": last.get(part.rank)}
        for name, table in tables.items():
            mine = table.values[table.ranks == part.rank]
            known = mine[np.isfinite(mine)]
            row[name] = _usual(name, known) if len(known) else None
        rows.append(row)
    return rows


def _usual(name: str, known: Any) -> float:
    """The middle of what comes and goes; the newest of what develops."""
    return float(np.median(known)) if name in ("step time", _LATE) else float(known[-1])


def _last(tables: dict[str, Table]) -> dict[int, float]:
    """Of each rank the share of steps in which it was behind all others, and clearly behind the middle of them."""
    paces = tables.get("step time")
    table = tables.get(_LATE) or paces
    whole = table.values[:, np.isfinite(table.values).all(0)] if table is not None else np.empty(0)
    if table is None or paces is None or not whole.size:
        return {}
    usual = float(np.nanmedian(paces.values))
    middle = np.sort(whole, axis=0)[(len(whole) - 1) // 2]
    slowest = np.where(whole.max(0) - middle > _BEHIND * usual, whole.argmax(0), -1)
    return {int(number): float((slowest == at).mean()) for at, number in enumerate(table.ranks.tolist())}
