"""The samples of one rank, by the column: what rules ask of millions of rows without making one of them.

Enters: the file they lie in, or a table that somebody has in hand. Leaves: numpy arrays of the columns asked for, and
tables of the few rows that become records. A long file is read on all cores, by the columns (``journal.sweep``).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np

from brickprof.journal import Damage
from brickprof.journal.pieces import Column
from brickprof.journal.sweep import Sweep
from brickprof.run import columns


class Source(Protocol):
    """Where columns come from."""

    rows: int
    damage: Damage

    def column(self, name: str) -> Column: ...
    def some(self, name: str, places: Any) -> Column: ...
    def missing(self, name: str) -> int: ...
    def around(self, mask: Any) -> tuple[Any, Any]: ...


class Samples:
    def __init__(self, source: Source | Sweep) -> None:
        self._source = source
        self.rows: int = source.rows
        self.damage = source.damage

    def known(self, name: str) -> bool:
        """Whether any row has a value there."""
        return self._source.missing(name) < self.rows

    def gapless(self, name: str) -> bool:
        """Whether every row has one."""
        return self._source.missing(name) == 0

    def stored(self, name: str) -> Any:
        """A column of whole numbers in the width it is stored in, where none is missing."""
        found = self._source.column(name)
        return found.values if found.values is not None and found.present is None else self.whole(name)

    def whole(self, name: str, missing: int = 0) -> Any:
        """A column of whole numbers; ``missing`` where there is none."""
        return _filled(self._source.column(name), self.rows, missing, np.int64)

    def numbers(self, name: str) -> Any:
        """A column of any numbers as floats; NaN where there is none."""
        return _filled(self._source.column(name), self.rows, np.nan, np.float64)

    def some(self, name: str, places: Any) -> Any:
        """Like ``numbers``, of some rows only; they ascend."""
        return _filled(self._source.some(name, places), len(places), np.nan, np.float64)

    def table(self, mask: Any = None) -> Any:
        """The rows that ``mask`` has, or all, as an Arrow table with every column."""
        table, chosen = self._source.around(np.ones(self.rows, bool) if mask is None else mask)
        return table if chosen.all() else columns.rows(table, chosen)

    @cached_property
    def looks(self) -> Looks:
        return Looks(self.whole("step"))


class Looks:
    """The steps that were looked at, ascending, and how many rows each has."""

    def __init__(self, steps: Any) -> None:
        self._rows = None
        changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
        self._starts = np.concatenate([np.zeros(min(1, len(steps)), np.int64), changes])
        self.steps = steps[self._starts]
        if np.any(self.steps[1:] <= self.steps[:-1]):
            self.steps, self._rows = np.unique(steps, return_inverse=True)
            self.counts = np.bincount(self._rows, minlength=len(self.steps))
        else:
            self.counts = np.diff(self._starts, append=len(steps))

    def of(self, places: Any) -> Any:
        """The look that each of some rows belongs to."""
        if self._rows is not None:
            return self._rows[places]
        return np.searchsorted(self._starts, places, side="right") - 1

    def spread(self, values: Any) -> Any:
        """A value for each look as one for each row."""
        return values[self._rows] if self._rows is not None else np.repeat(values, self.counts)


class Given:
    """Columns of an Arrow table."""

    def __init__(self, table: Any, damage: Damage) -> None:
        self._table = table
        self.rows: int = table.num_rows
        self.damage = damage

    def column(self, name: str) -> Column:
        column = self._table[name]
        if column.null_count == len(column):
            return Column(self.rows, None)
        return Column(self.rows, columns.values(column), columns.present(column) if column.null_count else None)

    def some(self, name: str, places: Any) -> Column:
        found = self.column(name)
        values = None if found.values is None else found.values[places]
        return Column(len(places), values, None if found.present is None else found.present[places])

    def missing(self, name: str) -> int:
        return int(self._table[name].null_count)

    def around(self, mask: Any) -> tuple[Any, Any]:
        return self._table, mask


def _filled(column: Column, rows: int, missing: float, kind: Any) -> Any:
    if column.values is None:
        return np.full(rows, missing, kind)
    if column.present is None:
        return column.values.astype(kind, copy=False)
    found = column.values.astype(kind)
    found[~column.present] = missing
    return found
