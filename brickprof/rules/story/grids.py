"""The statistics of many tensors over steps, as matrices.

Enters: samples, one at a time or as the columns of an Arrow table. Leaves: a ``Grid`` for each role and rank: one row
for each step that was looked at, one column for each tensor, NaN where a tensor was not measured. Ten thousand steps
of three hundred tensors are a few matrices of three million numbers, which rules compare in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from brickprof.bricks import Brick
from brickprof.records import Sample
from brickprof.run.columns import distinct

Floats = npt.NDArray[np.float64]
STATISTICS = ("numel", "nan", "inf", "absmax", "l2", "mean", "zero_fraction", "ratio", "checksum", "scale")
Wholes = npt.NDArray[np.int64]
Source = Floats | Callable[[], Floats]
"""The values of one statistic, or how to get them: most of them nobody asks for."""
_Chunk = tuple[Wholes, Wholes, dict[str, Source], Wholes | None]
_CHECKSUM = STATISTICS.index("checksum")


@dataclass
class Grid:
    """One role on one rank. ``grid.l2[look, place]`` belongs to ``steps[look]`` and ``tensors[place]``."""

    role: str
    rank: int
    steps: Wholes
    tensors: tuple[str, ...]
    bricks: tuple[Brick, ...]
    checksum: Wholes
    """Bits of the tensor; -1 where they were not taken."""
    _cells: tuple[Wholes, Wholes] | None
    """Row and column of each sample; None where they fill the matrix in its own order."""
    _columns: dict[str, Source] = field(repr=False)
    _rows: dict[tuple[str, int], Floats] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def matrix(self, name: str) -> Floats:
        """One statistic of every look and tensor; where a tensor was sampled twice in a step, the last."""
        shape = len(self.steps), len(self.tensors)
        if name not in self._columns:
            return np.broadcast_to(np.nan, shape)
        values = _values(self._columns[name])
        if self._cells is None:
            return values.reshape(shape)
        made = np.full(shape, np.nan)
        made[self._cells] = values
        return made

    def row(self, name: str, look: int) -> Floats:
        """One look of one statistic; of one that nobody asked for so far, only that look is fetched."""
        part = getattr(self._columns.get(name), "part", None)
        if name in self.__dict__ or self._cells is not None or part is None:
            found: Floats = getattr(self, name)[look]
            return found
        if (name, look) not in self._rows:
            wide = len(self.tensors)
            self._rows[name, look] = part(look * wide, (look + 1) * wide)
        return self._rows[name, look]

    @cached_property
    def looked(self) -> npt.NDArray[np.bool_]:
        """Which tensor was looked at when."""
        if self._cells is None and getattr(self._columns.get("numel"), "gapless", False):
            return np.broadcast_to(np.True_, (len(self.steps), len(self.tensors)))
        return ~np.isnan(self.numel)

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
        if "scale" not in self._columns or self.role == "update":
            return self.l2
        scale = np.where(np.isfinite(self.scale), self.scale, 1.0)
        found: Floats = self.l2 / np.where(scale > 0, scale, np.nan)  # -1: scaled, and nobody knows by how much
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

    def extend(self, steps: Wholes, places: Wholes, columns: dict[str, Source], checksums: Wholes | None) -> None:
        """Many samples at once: columns of equal length; what nobody measured is left out."""
        self._chunks.append((steps, places, columns, checksums))
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
        columns: dict[str, Source] = {
            name: np.asarray([np.nan if value is None else value for value in values], np.float64)
            for name, values in zip(STATISTICS, statistics, strict=True)
            if name != "checksum" and any(value is not None for value in values)
        }
        checksums = np.asarray([-1 if value is None else int(value) for value in statistics[_CHECKSUM]], np.int64)
        self.extend(np.asarray(steps, np.int64), np.asarray(places, np.int64), columns, checksums)

    def _made(self) -> Grid:
        self._chunks = [_joined(self._chunks)]
        where, places, columns, sums = self._chunks[0]
        steps = _regular(where, places, len(self._tensors))
        cells = None
        if steps is None:
            steps, rows = distinct(where)
            cells = rows, places
        shape = len(steps), len(self._tensors)
        checksum: Wholes = np.broadcast_to(np.int64(-1), shape)
        if sums is not None:
            checksum = np.full(shape, -1, np.int64)
            checksum[cells if cells is not None else ...] = sums if cells is not None else sums.reshape(shape)
        return Grid(self.role, self.rank, steps, tuple(self._tensors), tuple(self._bricks), checksum, cells, columns)


def _regular(steps: Wholes, places: Wholes, wide: int) -> Wholes | None:
    """The steps of samples that fill the matrix in its own order; None where they do not."""
    if not wide or len(steps) % wide:
        return None
    by_look, columns = steps.reshape(-1, wide), places.reshape(-1, wide)
    firsts: Wholes = np.ascontiguousarray(by_look[:, 0])
    if np.any(firsts[1:] <= firsts[:-1]) or np.any(by_look[:, -1] != firsts):
        return None
    return (
        firsts
        if np.all(by_look == firsts[:, None]) and np.all(columns == np.arange(wide, dtype=places.dtype))
        else None
    )


def _values(source: Source) -> Floats:
    return source() if callable(source) else source


def _joined(chunks: list[_Chunk]) -> _Chunk:
    if len(chunks) == 1:
        return chunks[0]
    steps, places = (np.concatenate([np.empty(0, np.int64), *(chunk[at] for chunk in chunks)]) for at in (0, 1))
    names = [name for name in STATISTICS if any(name in chunk[2] for chunk in chunks)]
    columns: dict[str, Source] = {
        name: np.concatenate([_values(chunk[2].get(name, np.full(len(chunk[0]), np.nan))) for chunk in chunks])
        for name in names
    }
    sums = [chunk[3] if chunk[3] is not None else np.full(len(chunk[0]), -1, np.int64) for chunk in chunks]
    return steps, places, columns, np.concatenate([np.empty(0, np.int64), *sums])
