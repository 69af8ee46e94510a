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
_Chunk = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], dict[str, Floats], npt.NDArray[np.int64]]
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
        if name in self._columns:
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
        if "scale" not in self._columns:
            return self.l2
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
        self._chunks: list[_Chunk] = []
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
        """Many samples at once: arrays of equal length; a statistic that nobody measured is left out of ``columns``."""
        floats = {name: np.asarray(values, np.float64) for name, values in columns.items()}
        floats = {name: values for name, values in floats.items() if not np.isnan(values).all()}
        chunk = (np.asarray(steps, np.int64), np.asarray(places, np.int64), floats, np.asarray(checksums, np.int64))
        self._chunks.append(chunk)
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
            if name != "checksum" and any(value is not None for value in values)
        }
        checksums = [-1 if value is None else int(value) for value in statistics[_CHECKSUM]]
        self.extend(steps, places, columns, checksums)

    def _made(self) -> Grid:
        self._chunks = [_joined(self._chunks)]
        where, places, columns, sums = self._chunks[0]
        steps, rows = np.unique(where, return_inverse=True)
        checksum = np.full((len(steps), len(self._tensors)), -1, np.int64)
        checksum[rows, places] = sums
        return Grid(
            self.role, self.rank, steps, tuple(self._tensors), tuple(self._bricks), checksum, rows, places, columns
        )  # fmt: skip


def _joined(chunks: list[_Chunk]) -> _Chunk:
    if len(chunks) == 1:
        return chunks[0]
    whole = [np.concatenate([np.empty(0, np.int64), *(chunk[at] for chunk in chunks)]) for at in (0, 1, 3)]
    names = [name for name in STATISTICS if any(name in chunk[2] for chunk in chunks)]
    columns = {
        name: np.concatenate([chunk[2].get(name, np.full(len(chunk[0]), np.nan)) for chunk in chunks]) for name in names
    }
    return whole[0], whole[1], columns, whole[2]
