"""A bounded series of numbers by step: its beginning and its end whole, its middle thinned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_HEAD, _TAIL, _MOST = 64, 512, 4096


@dataclass(frozen=True, slots=True)
class Point:
    step: int
    value: float
    evidence: str = ""
    name: str = ""


class Series:
    def __init__(self) -> None:
        self._points: list[Point] = []
        self.count = 0

    def add(self, point: Point) -> None:
        self.count += 1
        self._points.append(point)
        if len(self._points) > _MOST:
            points = self._points
            self._points = points[:_HEAD] + points[_HEAD:-_TAIL:2] + points[-_TAIL:]

    def raise_last(self, point: Point) -> None:
        """Adds ``point``, or keeps only the greater one when the last is of the same step."""
        if self._points and self._points[-1].step == point.step:
            if point.value > self._points[-1].value:
                self._points[-1] = point
        else:
            self.add(point)

    def until(self, step: int) -> list[Point]:
        """The points of steps up to and with ``step``."""
        return [point for point in self._points if point.step <= step]

    def __iter__(self) -> Iterator[Point]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)


def median(points: list[Point]) -> float:
    values = sorted(point.value for point in points)
    return values[len(values) // 2] if values else 0.0
