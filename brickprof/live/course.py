"""A number over the steps of a run, however long it is.

Enters: points, one at a time, about in order. Leaves: a bounded number of stretches of equal length, each with its
lowest, highest and last value and a mark where one of them was not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from brickprof.reports.live.scene import Point, Series

MOST = 512
_NONE = (math.inf, -math.inf)


class Course:
    def __init__(self, name: str) -> None:
        self.name = name
        self._first: int | None = None
        self._width = 1
        self._stretches: dict[int, Point] = {}
        self._made: Series | None = None

    def add(self, step: int, value: float) -> None:
        if self._first is None:
            self._first = step
        place = max(step - self._first, 0) // self._width
        while place >= MOST:
            self._halve()
            place //= 2
        known = self._stretches.get(place)
        point = _point(step, value)
        self._stretches[place] = point if known is None else _joined(known, point)
        self._made = None

    def series(self, more: Iterable[tuple[int, float]] = ()) -> Series:
        """The course so far, and behind it ``more``: points that may still change."""
        if self._made is None:
            points = tuple(self._stretches[place] for place in sorted(self._stretches))
            self._made = Series(self.name, points, self._first or 0)
        last = self._made.points[-1].step if self._made.points else -1
        new = tuple(_point(step, value) for step, value in more if step > last)
        return Series(self.name, self._made.points + new, self._made.start) if new else self._made

    def _halve(self) -> None:
        self._width *= 2
        wider: dict[int, Point] = {}
        for place in sorted(self._stretches):
            point, known = self._stretches[place], wider.get(place // 2)
            wider[place // 2] = point if known is None else _joined(known, point)
        self._stretches = wider


class Means:
    """The mean over the micro-batches of a step goes into a course when the next step begins."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self._step = -1
        self._total = 0.0
        self._count = 0

    def add(self, step: int, value: float) -> None:
        if step != self._step:
            for at, mean in self.open:
                self.course.add(at, mean)
            self._step, self._total, self._count = step, 0.0, 0
        self._total += value
        self._count += 1

    @property
    def open(self) -> list[tuple[int, float]]:
        """The step whose micro-batches are still coming."""
        return [(self._step, self._total / self._count)] if self._count else []


def _point(step: int, value: float) -> Point:
    if math.isfinite(value):
        return Point(step, value, value, value)
    return Point(step, *_NONE, value, "N" if math.isnan(value) else "I")


def _joined(a: Point, b: Point) -> Point:
    later = b if b.step >= a.step else a
    odd = "N" if "N" in (a.odd, b.odd) else a.odd or b.odd
    return Point(later.step, min(a.low, b.low), max(a.high, b.high), later.last, odd)
