"""The gradients of the last steps that were looked at, by block.

Enters: new rows of a rank's samples, and the names of its bricks. Leaves: a ``Heat``: of each block the largest of
its tensors' norms, as log10, with marks for what is not finite and for what is all zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brickprof.records import ROLES
from brickprof.reports.live.scene import Heat

MOST_STEPS = 160
_GRAD = ROLES.index("grad")
_COLUMNS = ["step", "role", "brick", "nan", "inf", "absmax", "l2"]
_NAN, _INF, _UNMEASURED = 2, 1, -1

Cell = float | str


class Gradients:
    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.version = 0
        self._steps: dict[int, dict[int, Cell]] = {}
        self._blocks: list[int] = []
        self._columns: dict[int, tuple[Cell | None, ...]] = {}
        """Cells that were put in order already."""
        self._made: tuple[int, int, Heat] = (-1, -1, Heat())

    def take(self, table: Any) -> None:
        """New rows, of which the gradients count."""
        import pyarrow.compute as pc

        rows = table.select(_COLUMNS)
        rows = rows.filter(pc.equal(rows["role"], _GRAD))
        if not rows.num_rows:
            return
        step, brick = (rows[name].to_numpy() for name in ("step", "brick"))
        newest = np.unique(step)[-MOST_STEPS:]
        if newest[0] > step.min():
            keep = step >= newest[0]
            rows, step, brick = rows.filter(keep), step[keep], brick[keep]
        logs, odd = _sizes(rows)
        measured = odd >= 0
        self._put(step[measured], brick[measured], logs[measured], odd[measured])
        for old in sorted(self._steps)[:-MOST_STEPS]:
            del self._steps[old]
        self.version += 1

    def _put(self, step: Any, brick: Any, logs: Any, odd: Any) -> None:
        pairs, inverse = np.unique(np.stack([step, brick]), axis=1, return_inverse=True)
        top = np.full(pairs.shape[1], -np.inf)
        worst = np.zeros(pairs.shape[1], np.int8)
        np.maximum.at(top, inverse.ravel(), logs)
        np.maximum.at(worst, inverse.ravel(), odd)
        for at, block, value, mark in zip(*pairs.tolist(), top.tolist(), worst.tolist(), strict=True):
            cell: Cell = "N" if mark == _NAN else "I" if mark == _INF else "0" if value == -np.inf else value
            self._steps.setdefault(at, {})[block] = cell
            self._columns.pop(at, None)

    def heat(self, rank: int) -> Heat:
        if self._made[:2] != (self.version, len(self.names)):
            self._made = (self.version, len(self.names), self._heat(rank))
        return self._made[2]

    def _heat(self, rank: int) -> Heat:
        blocks = sorted({block for column in self._steps.values() for block in column})
        if blocks != self._blocks:
            self._blocks, self._columns = blocks, {}
        steps = sorted(self._steps)
        self._columns = {step: self._columns.get(step) or self._column(step) for step in steps}
        return Heat(
            tuple(self.names.get(block) or (f"brick {block}" if block else "model") for block in blocks),
            tuple(steps),
            tuple(zip(*self._columns.values(), strict=True)),
            rank,
        )

    def _column(self, step: int) -> tuple[Cell | None, ...]:
        found = self._steps[step]
        return tuple(found.get(block) for block in self._blocks)


def _sizes(rows: Any) -> tuple[Any, Any]:
    """log10 of the norm of each row (-inf: zero, or not finite), and what is odd about it."""
    nan, inf, absmax, l2 = (_numbers(rows[name]) for name in ("nan", "inf", "absmax", "l2"))
    size = np.where(np.isnan(l2), absmax, l2)
    with np.errstate(all="ignore"):
        logs = np.where((size > 0) & np.isfinite(size), np.log10(size), -np.inf)
    finite = np.where(np.isnan(size), _UNMEASURED, 0)
    return logs, np.where(nan > 0, _NAN, np.where((inf > 0) | np.isinf(size), _INF, finite)).astype(np.int8)


def _numbers(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
