"""A bounded series of numbers by step: its beginning and its end whole, its middle thinned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import eq
from typing import NamedTuple

from brickprof.records import Event, Sample

_HEAD, _TAIL, _MOST = 64, 512, 4096


class Point(NamedTuple):
    step: int
    value: float
    evidence: str = ""
    name: str = ""


class Series:
    """Numbers and the records they stand in. Of ten thousand few are ever looked at: these become points then."""

    def __init__(self) -> None:
        self._kept: list[Point | tuple[int, float, Event | Sample]] = []
        self._step, self._value = -1, 0.0
        self.count = 0

    def add(self, step: int, value: float, record: Event | Sample) -> None:
        self.count += 1
        self._step, self._value = step, value
        self._kept.append((step, value, record))
        if len(self._kept) > _MOST:
            self._thin()

    def extend(self, rows: Sequence[tuple[int, float, Event | Sample]]) -> None:
        """``add`` of many: as many at a time as there is room for."""
        if rows:
            self._step, self._value, _ = rows[-1]
        self.count += len(rows)
        taken = 0
        while taken < len(rows):
            some = rows[taken : taken + _MOST + 1 - len(self._kept)]
            self._kept += some
            taken += len(some)
            if len(self._kept) > _MOST:
                self._thin()

    def raise_with(self, rows: Sequence[tuple[int, float, Event | Sample]]) -> None:
        """``raise_last`` of many."""
        steps = [self._step if self._kept else None, *(row[0] for row in rows)]
        if any(map(eq, steps, steps[1:])):
            for row in rows:
                self.raise_last(*row)
        else:
            self.extend(rows)

    def _thin(self) -> None:
        kept = self._kept
        self._kept = kept[:_HEAD] + kept[_HEAD:-_TAIL:2] + kept[-_TAIL:]

    def raise_last(self, step: int, value: float, record: Event | Sample) -> None:
        """Adds a number, or keeps only the greater one when the last is of the same step."""
        if not self._kept or self._step != step:
            self.add(step, value, record)
        elif value > self._value:
            self._value = value
            self._kept[-1] = (step, value, record)

    def until(self, step: int) -> list[Point]:
        """The points of steps up to and with ``step``."""
        return [point for point in self if point.step <= step]

    def __iter__(self) -> Iterator[Point]:
        points = [each if isinstance(each, Point) else Point(each[0], each[1], each[2].id) for each in self._kept]
        self._kept = list(points)
        return iter(points)

    def __len__(self) -> int:
        return len(self._kept)


def median(points: list[Point]) -> float:
    values = sorted(point.value for point in points)
    return values[len(values) // 2] if values else 0.0
