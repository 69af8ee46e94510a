"""How gradients, updates and losses moved before an incident.

Enters: a ``Timeline`` and a step. Leaves: small frozen answers that several causes share.
"""

from __future__ import annotations

from typing import NamedTuple

from brickprof.diagnosis.series import Point, median
from brickprof.diagnosis.timeline import Timeline

GROWN = 100.0
HUGE = 1e5
BIG_UPDATE = 0.5
SMALL_UPDATE = 0.05
_FLAT = 10.0
_LEARNT = 0.5
_AFTERMATH = 8


class Norms(NamedTuple):
    """The gradient norm up to a step."""

    first: Point
    last: Point
    peak: Point
    typical: float
    gradual: int
    """Over how many looks it rose, one after another, before its peak."""

    @property
    def factor(self) -> float:
        return self.peak.value / self.typical if self.typical > 0 else 1.0

    @property
    def grew(self) -> bool:
        return self.factor >= GROWN

    @property
    def flat(self) -> bool:
        return self.factor <= _FLAT and self.first.value < HUGE


def norms(timeline: Timeline, step: int) -> Norms | None:
    points = timeline.norms.until(step)
    if not points:
        return None
    typical = median(points[: max(1, len(points) // 2)])
    peak = max(points[-8:], key=lambda point: point.value)
    rising = 0
    upto = points[: points.index(peak) + 1]
    for before, after in zip(reversed(upto[:-1]), reversed(upto[1:]), strict=True):
        if after.value < 1.5 * before.value:
            break
        rising += 1
    return Norms(points[0], points[-1], peak, typical, rising)


class Updates(NamedTuple):
    """The size of updates as a share of the weights they changed, up to a step."""

    first_big: Point | None
    last: Point
    typical: float


def updates(timeline: Timeline, step: int) -> Updates | None:
    points = timeline.moves.until(step)
    if not points:
        return None
    since = _last_learnt(timeline, step)
    big = next((point for point in points if point.value >= BIG_UPDATE and point.step >= since), None)
    return Updates(big, points[-1], median(points))


def _last_learnt(timeline: Timeline, step: int) -> int:
    """The step from which on a large update may have done harm: after earlier ones the loss fell to its lowest."""
    losses = timeline.losses.until(step)
    lowest = min(losses, key=_value, default=None)
    if lowest is None or lowest.value > _LEARNT * losses[0].value:
        return 0
    return lowest.step - _AFTERMATH


class Profile(NamedTuple):
    """Gradients over depth at the last look: the smallest and the largest block."""

    low: Point
    high: Point
    blocks: int

    @property
    def per_block(self) -> float:
        if self.blocks < 2 or self.low.value <= 0:
            return 1.0
        return float((self.high.value / self.low.value) ** (1 / (self.blocks - 1)))


def profile(timeline: Timeline, step: int) -> Profile | None:
    """The growth of gradients from block to block, where there are enough blocks to speak of it."""
    by_depth: dict[int, Point] = {}
    for level in timeline.grads.values():
        deep = timeline.depth.of(level.brick)
        point = level.last if level.last.step <= step else level.first
        if deep is not None and point.value > by_depth.get(deep, Point(0, -1.0)).value:
            by_depth[deep] = point
    ordered = [by_depth[deep] for deep in sorted(by_depth)]
    if len(ordered) < 4:
        return None
    low, high = min(ordered, key=_value), max(ordered, key=_value)
    return Profile(low, high, abs(ordered.index(high) - ordered.index(low)) + 1)


def _value(point: Point) -> float:
    return point.value


def loss_rise(timeline: Timeline, step: int) -> tuple[Point, Point] | None:
    """(lowest, last) where the loss had risen to three times its lowest value before the incident."""
    points = timeline.losses.until(step)
    if len(points) < 2:
        return None
    lowest, last = min(points, key=_value), points[-1]
    return (lowest, last) if last.value > max(3 * lowest.value, lowest.value + 1.0) else None
