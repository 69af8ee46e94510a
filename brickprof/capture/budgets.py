"""What each brick usually takes the device, and which one has become unsteady.

Enters: times of bricks on the device, as they come home. Leaves: now and then a brick that matters (it has at least a
twentieth of the step) and whose times scatter by more than 15 %: the next steps are then traced in full, and their
spans say why. Rarely: three times in a run, each after a longer rest. Host times are not judged, since whatever else
the machine does scatters them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import fmean, pstdev

CV = 0.15
_MATTERS = 0.05
_SETTLED = 64
"""Steps that are not judged: what is compiled, tuned and allocated in them comes once."""
_WINDOW = 16
_ENOUGH = 12
_MOST = 3
_REST = 256
_MOST_BRICKS = 4096
Key = tuple[int, int]  # brick, phase


class Budgets:
    def __init__(self, escalate: Callable[[int, float, float], None]) -> None:
        """``escalate(brick, mean_ns, cv)``."""
        self._escalate = escalate
        self._times: dict[Key, deque[int]] = {}
        self._told = 0
        self._due = 0

    def learn(self, step: int, step_ns: int, times: list[tuple[int, int, int]]) -> None:
        """The (brick, phase, ns) of one step, and what the whole step took."""
        if step < _SETTLED or step_ns <= 0 or self._told >= _MOST:
            return
        for brick, phase, ns in times:
            if (brick, phase) in self._times or len(self._times) < _MOST_BRICKS:
                self._times.setdefault((brick, phase), deque(maxlen=_WINDOW)).append(ns)
        if step >= self._due:
            self._judge(step, step_ns)

    def _judge(self, step: int, step_ns: int) -> None:
        worst: tuple[float, int, float] | None = None
        for (brick, _), times in self._times.items():
            mean = fmean(times)
            if len(times) < _ENOUGH or mean < _MATTERS * step_ns:
                continue
            cv = pstdev(times) / mean
            if cv > CV and (worst is None or cv > worst[0]):
                worst = cv, brick, mean
        if worst is None:
            return
        self._told += 1
        self._due = step + _REST * 2**self._told
        self._times.clear()
        self._escalate(worst[1], worst[2], worst[0])
