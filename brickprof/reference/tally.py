"""What all marks together say: recall, accuracy, false alarms, latency, and whether confidence means something.

Enters: ``Mark`` after ``Mark``. Leaves: a ``Tally``, plain numbers, and the bar that they are held against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from brickprof.reference.score import JUDGED, Mark

BAR = {"detected": 0.95, "contract and brick": 0.90, "root cause": 0.90}
"""The smallest share of the faults that is good enough. Of the healthy runs, every one must stay silent."""
LIMITS = {"numeric": 1, "silent": 50}
"""Steps within which a kind of fault should be seen."""
EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        return self.count / self.of if self.of else None

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({100 * self.count / self.of:.1f} %)" if self.of else "none"

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "of": self.of, "share": self.value}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Over some of the faults. One that crashed or ran out of time is in every ``of`` and in no count."""

    detected: Share
    contract: Share
    brick: Share
    placed: Share
    root_cause: Share

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).to_dict() for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Latency:
    """In steps, over the detected faults of a kind that have a first step."""

    count: int
    median: float
    worst: int
    limit: int | None
    within: int | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Findings of about the same confidence, and how many of them named the root cause."""

    low: float
    high: float
    count: int
    confidence: float
    right: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Over the top finding of every run that has one; on a healthy run it is wrong whatever it says."""

    count: int
    brier: float | None
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    name: str
    reached: Share
    wanted: float

    @property
    def met(self) -> bool:
        return self.reached.value is None or self.reached.value >= self.wanted

    def to_dict(self) -> dict[str, Any]:
        return self.reached.to_dict() | {"name": self.name, "wanted": self.wanted, "met": self.met}


@dataclass(frozen=True, slots=True)
class Tally:
    faults: Accuracy
    silent: Share
    """Of the healthy runs, those without an error or a warning."""
    by_family: dict[str, Accuracy]
    by_kind: dict[str, Accuracy]
    latency: dict[str, Latency]
    calibration: Calibration
    states: dict[str, int]

    @property
    def goals(self) -> tuple[Goal, ...]:
        reached = (self.faults.detected, self.faults.placed, self.faults.root_cause)
        goals = [Goal(name, share, wanted) for (name, wanted), share in zip(BAR.items(), reached, strict=True)]
        return (*goals, Goal("healthy runs left alone", self.silent, 1.0))

    @property
    def met(self) -> bool:
        return all(goal.met for goal in self.goals)

    def to_dict(self) -> dict[str, Any]:
        return {
            "met": self.met,
            "goals": [goal.to_dict() for goal in self.goals],
            "faults": self.faults.to_dict(),
            "healthy": {"silent": self.silent.to_dict(), "false_alarms_or_broken": self.silent.of - self.silent.count},
            "states": self.states,
            "by_kind": {name: accuracy.to_dict() for name, accuracy in self.by_kind.items()},
            "by_family": {name: accuracy.to_dict() for name, accuracy in self.by_family.items()},
            "latency": {name: asdict(latency) for name, latency in self.latency.items()},
            "calibration": asdict(self.calibration),
        }


def tally(marks: Iterable[Mark]) -> Tally:
    marks = list(marks)
    counted = [mark for mark in marks if mark.counts]
    faults = [mark for mark in counted if not mark.healthy]
    controls = [mark for mark in counted if mark.healthy]
    return Tally(
        accuracy(faults),
        _share(controls, lambda mark: mark.right),
        _by(faults, lambda mark: mark.family),
        _by(faults, lambda mark: mark.kind),
        latencies(faults),
        calibrate(counted),
        _states(marks),
    )


def accuracy(faults: Sequence[Mark]) -> Accuracy:
    return Accuracy(
        _share(faults, lambda mark: mark.detected),
        _share(faults, lambda mark: mark.contract),
        _share(faults, lambda mark: mark.brick),
        _share(faults, lambda mark: mark.placed),
        _share(faults, lambda mark: mark.root_cause),
    )


def latencies(faults: Sequence[Mark]) -> dict[str, Latency]:
    steps: dict[str, list[int]] = {}
    for mark in faults:
        if mark.latency is not None:
            steps.setdefault(mark.kind, []).append(mark.latency)
    return {kind: _latency(kind, late) for kind, late in sorted(steps.items())}


def calibrate(marks: Sequence[Mark]) -> Calibration:
    told = [
        (float(mark.found["confidence"]), mark.root_cause)
        for mark in marks
        if mark.state == JUDGED and mark.found and isinstance(mark.found.get("confidence"), (int, float))
    ]
    if not told:
        return Calibration(0, None, ())
    brier = sum((confidence - right) ** 2 for confidence, right in told) / len(told)
    bins = (_bin(low, high, told) for low, high in pairwise(EDGES))
    return Calibration(len(told), round(brier, 4), tuple(one for one in bins if one.count))


def _share(marks: Sequence[Mark], holds: Callable[[Mark], bool]) -> Share:
    return Share(sum(map(holds, marks)), len(marks))


def _by(faults: Sequence[Mark], name: Callable[[Mark], str]) -> dict[str, Accuracy]:
    return {each: accuracy([m for m in faults if name(m) == each]) for each in sorted(set(map(name, faults)))}


def _latency(kind: str, steps: list[int]) -> Latency:
    limit = LIMITS.get(kind)
    within = None if limit is None else sum(late <= limit for late in steps)
    return Latency(len(steps), float(median(steps)), max(steps), limit, within)


def _bin(low: float, high: float, told: list[tuple[float, bool]]) -> Bin:
    inside = [(c, right) for c, right in told if low <= c < high or (c >= high == EDGES[-1])]
    count = len(inside)
    mean = sum(c for c, _ in inside) / count if count else 0.0
    return Bin(low, high, count, round(mean, 3), round(sum(right for _, right in inside) / count, 3) if count else 0.0)


def _states(marks: Sequence[Mark]) -> dict[str, int]:
    return {state: sum(mark.state == state for mark in marks) for state in sorted({mark.state for mark in marks})}
