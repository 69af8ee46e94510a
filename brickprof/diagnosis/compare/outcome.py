"""One quantity of two runs: how many values were compared, how many differ, and which is the first.

Enters: the values of both runs by place. Leaves: an ``Outcome``; those of several ranks add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Value = float | int | str | bool | None
Order = tuple[int, int, int, int, int]
"""Step, micro-batch, stage within the step, depth, rank: sorts by causality."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that the two runs do not share."""

    what: str
    step: int
    rank: int
    brick: str
    tensor: str
    a: Any
    b: Any
    evidence: tuple[str, str]


@dataclass(slots=True)
class Outcome:
    what: str
    compared: int = 0
    different: int = 0
    largest: float | None = None
    first: tuple[Order, Difference] | None = None
    steps: set[int] = field(default_factory=set)

    def add(self, other: Outcome) -> None:
        self.compared += other.compared
        self.different += other.different
        self.largest = max((found for found in (self.largest, other.largest) if found is not None), default=None)
        self.first = min(
            (found for found in (self.first, other.first) if found is not None), key=lambda item: item[0], default=None
        )
        self.steps |= other.steps


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands; two runs share a place when it is equal in all of this."""

    rank: int
    step: int
    micro: int
    stage: int
    depth: int
    name: str

    @property
    def order(self) -> Order:
        return self.step, self.micro, self.stage, self.depth, self.rank


@dataclass(frozen=True, slots=True)
class Entry:
    value: Value
    evidence: str


Entries = dict[Place, Entry]


def of_entries(what: str, a: Entries, b: Entries, tolerance: float) -> Outcome:
    common = sorted(a.keys() & b.keys(), key=lambda place: place.order)
    apart = [place for place in common if not equal(a[place].value, b[place].value, tolerance)]
    distances = (distance(a[place].value, b[place].value) for place in common)
    found = Outcome(what, len(common), len(apart), _largest(distances), steps={place.step for place in common})
    for place in apart[:1]:
        mine, theirs = a[place], b[place]
        evidence = (mine.evidence, theirs.evidence)
        told = Difference(what, place.step, place.rank, "", place.name, mine.value, theirs.value, evidence)
        found.first = place.order, told
    return found


def equal(a: Value, b: Value, tolerance: float) -> bool:
    """The same value, to the bit unless there is a tolerance; two NaN are the same."""
    apart = distance(a, b)
    if apart is None:
        return a == b
    return apart <= tolerance


def distance(a: Value, b: Value) -> float | None:
    """How far two numbers are apart: as they are when small, relative when above one; None for anything else."""
    if not isinstance(a, float) or not isinstance(b, float):
        return None
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf
    return abs(a - b) / max(1.0, abs(a), abs(b))


def _largest(distances: Iterable[float | None]) -> float | None:
    return max((found for found in distances if found is not None), default=None)
