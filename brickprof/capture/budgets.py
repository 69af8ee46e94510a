"""What each brick may take the device, and which one has become unsteady or slow.

Enters: times of bricks on the device, as they come home; budgets that somebody declared. Leaves: the budget of a brick,
declared or learned (the median of its first settled window), and now and then a brick that strains it:

    cv_exceeded      its times scatter by more than 15 %
    efficiency_low   budget / actual is below 25 %, actual being the median of the window
    both

A brick without a declared budget has to matter, with at least a twentieth of the step. The next steps are then traced
in full, and their spans say why. Rarely: three times in a run, each after a longer rest, and where nobody declared the
budget not before the training has lasted for long enough to afford it. Host times are not judged, since whatever else
the machine does scatters them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from statistics import fmean, median, pstdev
from typing import NamedTuple

from brickprof.bricks import Brick
from brickprof.records import PHASES

CV = 0.15
EFFICIENCY = 0.25
_MATTERS = 0.05
_SETTLED = 64
"""Steps that are not judged: what is compiled, tuned and allocated in them comes once."""
_WINDOW = 16
_ENOUGH = 12
_MOST = 3
_REST = 256
_MOST_BRICKS = 4096
_BACKWARD = PHASES.index("backward")
Key = tuple[int, int]  # brick, phase


class Strain(NamedTuple):
    """A brick that takes its time differently from step to step, or too long, or both."""

    brick: int
    phase: int
    mean_ns: float
    cv: float
    budget_ns: float | None
    efficiency: float | None
    reason: str


class Declared:
    """Budgets by name, in microseconds: ``{"blocks.*.attention": 500, "head backward": 900}``."""

    def __init__(self, budgets: Mapping[str, float], bricks: Mapping[Brick, int]) -> None:
        self._budgets = budgets
        self._bricks = bricks
        self._own: dict[int, float] = {}
        self._found: dict[Key, float | None] = {}

    def add(self, brick: int, budget_us: float) -> None:
        """A brick of the script's says itself what it may take."""
        self._own[brick] = 1000.0 * budget_us

    def of(self, brick: int, phase: int) -> float | None:
        """In ns. A name alone is the forward's; the backward of a brick is called so."""
        if brick in self._own and phase != _BACKWARD:
            return self._own[brick]
        if not self._budgets:
            return None
        key = brick, phase
        if key not in self._found:
            self._found[key] = self._search(brick, phase)
        return self._found[key]

    def _search(self, brick: int, phase: int) -> float | None:
        known = next((each for each, number in self._bricks.items() if number == brick), None)
        if known is None:
            return None
        ending = " backward" if phase == _BACKWARD else ""
        names = {f"{known.name(qualified=qualified)}{ending}" for qualified in (False, True)}
        for pattern, budget in self._budgets.items():
            if any(fnmatchcase(name, pattern) for name in names):
                return 1000.0 * budget
        return None


class Budgets:
    def __init__(
        self,
        escalate: Callable[[Strain], None],
        declared: Declared | None = None,
        affords: Callable[[], bool] = lambda: True,
    ) -> None:
        self._escalate = escalate
        self._affords = affords
        self.declared = declared or Declared({}, {})
        self._times: dict[Key, deque[int]] = {}
        self._learned: dict[Key, float] = {}
        self._told = 0
        self._due = 0

    def of(self, brick: int, phase: int) -> float | None:
        """What ``brick`` may take, in ns: as declared, else as learned; None while nobody knows."""
        declared = self.declared.of(brick, phase)
        return self._learned.get((brick, phase)) if declared is None else declared

    def learn(self, step: int, step_ns: int, times: list[tuple[int, int, int]]) -> None:
        """The (brick, phase, ns) of one step, and what the whole step took."""
        if step < _SETTLED or step_ns <= 0 or self._told >= _MOST:
            return
        for brick, phase, ns in times:
            self._keep((brick, phase), ns)
        if step >= self._due:
            self._judge(step, step_ns)

    def _keep(self, key: Key, ns: int) -> None:
        window = self._times.get(key)
        if window is None:
            if len(self._times) >= _MOST_BRICKS:
                return
            window = self._times[key] = deque(maxlen=_WINDOW)
        window.append(ns)
        if len(window) == _WINDOW and key not in self._learned:
            self._learned[key] = median(window)

    def _judge(self, step: int, step_ns: int) -> None:
        found = [strain for key, times in self._times.items() if (strain := self._strain(key, times, step_ns))]
        if found and not self._affords():
            found = [strain for strain in found if self.declared.of(strain.brick, strain.phase) is not None]
        if not found:
            return
        worst = max(found, key=_severity)
        self._told += 1
        self._due = step + _REST * 2**self._told
        self._times.clear()
        self._escalate(worst)

    def _strain(self, key: Key, times: deque[int], step_ns: int) -> Strain | None:
        mean = fmean(times)
        matters, declared = mean >= _MATTERS * step_ns, self.declared.of(*key) is not None
        if len(times) < _ENOUGH or mean <= 0 or not (matters or declared):
            return None
        cv, budget = pstdev(times) / mean, self.of(*key)
        ratio = None if budget is None else efficiency(budget, median(times))
        scatters, slow = matters and cv > CV, ratio is not None and ratio < EFFICIENCY
        if not (scatters or slow):
            return None
        reason = "both" if scatters and slow else "cv_exceeded" if scatters else "efficiency_low"
        return Strain(*key, mean, cv, budget, ratio, reason)


def efficiency(budget: float, actual: float) -> float:
    """min(budget / actual, 1)."""
    return min(budget / actual, 1.0) if actual > 0 else 1.0


def _severity(strain: Strain) -> float:
    """How many times its bound a brick is beyond."""
    slow = 0.0 if strain.efficiency is None else EFFICIENCY / max(strain.efficiency, 1e-9)
    return max(strain.cv / CV, slow)
