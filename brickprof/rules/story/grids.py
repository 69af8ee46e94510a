"""The statistics of many tensors over steps, as matrices.

Enters: samples, one at a time or as the columns of an Arrow table. Leaves: a ``Grid`` for each role and rank: one row
for each step that was looked at, one column for each tensor, NaN where a tensor was not measured. Ten thousand steps
of three hundred tensors are a few matrices of three million numbers, which rules compare in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from brickprof.bricks import Brick
from brickprof.records import Sample

Floats = npt.NDArray[np.float64]
STATISTICS = ("numel", "nan", "inf", "absmax", "l2", "mean", "zero_fraction", "ratio", "checksum", "scale")
_CHECKSUM = STATISTICS.index("checksum")


@dataclass
class Grid:
    """One role on one rank. ``grid.l2[look, place]`` belongs to ``steps[look]`` and ``tensors[place]``."""

    role: str
    rank: int
    steps: npt.NDArray[np.int64]
    tensors: tuple[str, ...]
    bricks: tuple[Brick, ...]
    checksum: npt.NDArray[np.int64]
    """Bits of the tensor; -1 where they were not taken."""
    _rows: npt.NDArray[np.int64]
    _places: npt.NDArray[np.int64]
    _columns: dict[str, Floats] = field(repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def matrix(self, name: str) -> Floats:
        """One statistic of every look and tensor; where a tensor was sampled twice in a step, the last."""
        made = np.full((len(self.steps), len(self.tensors)), np.nan)
        made[self._rows, self._places] = self._columns[name]
        return made

    @cached_property
    def numel(self) -> Floats:
        return self.matrix("numel")

    @cached_property
    def nan(self) -> Floats:
        return self.matrix("nan")

    @cached_property
    def inf(self) -> Floats:
        return self.matrix("inf")

    @cached_property
    def absmax(self) -> Floats:
        return self.matrix("absmax")

    @cached_property
    def l2(self) -> Floats:
        return self.matrix("l2")

    @cached_property
    def mean(self) -> Floats:
        return self.matrix("mean")

    @cached_property
    def zero_fraction(self) -> Floats:
        return self.matrix("zero_fraction")

    @cached_property
    def ratio(self) -> Floats:
        return self.matrix("ratio")

    @cached_property
    def scale(self) -> Floats:
        return self.matrix("scale")

    @cached_property
    def unscaled_l2(self) -> Floats:
        """The norms without the loss scale that was on them."""
        scale = np.where(np.isfinite(self.scale) & (self.scale > 0), self.scale, 1.0)
        found: Floats = self.l2 / scale
        return found

    @cached_property
    def rms(self) -> Floats:
        """Root mean square: sizes of tensors that have different numbers of elements, made comparable."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Floats = self.l2 / np.sqrt(self.numel)
        return found

    @cached_property
    def total(self) -> Floats:
        """The norm over all tensors, a number for each look; infinite where it does not fit."""
        with np.errstate(over="ignore", invalid="ignore"):
            found: Floats = np.sqrt(np.nansum(np.square(self.unscaled_l2), axis=1))
        return found

    def evidence(self, look: int, place: int) -> str:
        """The id of the record behind one cell."""
        return f"{self.role}:{int(self.steps[look])}:{self.tensors[place]}@{self.rank}"

    def place(self, tensor: str) -> int | None:
        return self.tensors.index(tensor) if tensor in self.tensors else None


class Columns:
    """Samples as they come, kept in columns until somebody asks for the grid."""

    def __init__(self, role: str, rank: int) -> None:
        self.role = role
        self.rank = rank
        self._tensors: dict[str, int] = {}
        self._bricks: list[Brick] = []
        self._pending: list[tuple[Any, ...]] = []
        self._chunks: list[tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.int64]]] = []
        self._grid: Grid | None = None

    def add(self, sample: Sample) -> None:
        place = self.place(sample.tensor, sample.brick)
        self._pending.append((sample.step, place, *(getattr(sample, name) for name in STATISTICS)))
        self._grid = None

    def place(self, tensor: str, brick: Brick) -> int:
        """The column of ``tensor``."""
        known = self._tensors.get(tensor)
        if known is None:
            known = self._tensors[tensor] = len(self._tensors)
            self._bricks.append(brick)
        return known

    def extend(self, steps: Any, places: Any, columns: dict[str, Any], checksums: Any) -> None:
        """Many samples at once: numpy arrays of equal length; ``columns`` by statistic, missing ones NaN."""
        where = np.stack([np.asarray(steps, np.int64), np.asarray(places, np.int64)], axis=1)
        floats = np.stack(
            [np.asarray(columns[name], np.float64) for name in STATISTICS if name != "checksum"], axis=1
        ) if len(where) else np.empty((0, len(STATISTICS) - 1))  # fmt: skip
        self._chunks.append((where, floats, np.asarray(checksums, np.int64)))
        self._grid = None

    def grid(self) -> Grid:
        if self._grid is None:
            self._take_pending()
            self._grid = self._made()
        return self._grid

    def _take_pending(self) -> None:
        if not self._pending:
            return
        rows, self._pending = self._pending, []
        steps, places, *statistics = zip(*rows, strict=True)
        columns = {
            name: [np.nan if value is None else value for value in values]
            for name, values in zip(STATISTICS, statistics, strict=True)
            if name != "checksum"
        }
        checksums = [-1 if value is None else int(value) for value in statistics[_CHECKSUM]]
        self.extend(steps, places, columns, checksums)

    def _made(self) -> Grid:
        names = [name for name in STATISTICS if name != "checksum"]
        where = np.concatenate([chunk[0] for chunk in self._chunks] or [np.empty((0, 2), np.int64)])
        floats = np.concatenate([chunk[1] for chunk in self._chunks] or [np.empty((0, len(names)))])
        sums = np.concatenate([chunk[2] for chunk in self._chunks] or [np.empty(0, np.int64)])
        self._chunks = [(where, floats, sums)]
        steps, rows = np.unique(where[:, 0], return_inverse=True)
        checksum = np.full((len(steps), len(self._tensors)), -1, np.int64)
        checksum[rows, where[:, 1]] = sums
        columns = {name: floats[:, place] for place, name in enumerate(names)}
        return Grid(
            self.role, self.rank, steps, tuple(self._tensors), tuple(self._bricks), checksum, rows, where[:, 1], columns
        )
