"""What looking costs when nothing is in its way.

Enters: how long a piece of looking took the host, and whether the device was behind just then. Leaves: what of it is
our cost. Whoever queues work for a device that is far behind waits for a place in its queue, the training as well as
we; it would have waited there without us, so the wait is the step's. What the same piece took at its quickest tells the
two apart.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_HELD_UP = 2.0
"""A piece that takes so many times what it usually does, while the device is behind, was held up."""
_KNOWN = 32
_ENOUGH = 4


class Backlog:
    def __init__(self) -> None:
        self._quickest: dict[str, float] = {}
        self._free: dict[str, deque[float]] = {}
        """What each piece took lately while the device kept up."""

    def quickest(self, piece: str) -> float:
        return self._quickest.get(piece, 0.0)

    def usual(self, piece: str) -> float:
        """What it takes while the device keeps up; at least what it took at its quickest."""
        free = self._free.get(piece, ())
        return median(free) if len(free) >= _ENOUGH else self.quickest(piece)

    def cost(self, piece: str, took: float, *, behind: bool, steady: bool = False) -> float:
        """Of the time that ``piece`` took, the part that is ours. One that is ``steady`` does the same every time: its
        quickest tells what it costs; another is compared with what it took while nothing was in its way."""
        if took <= 0:
            return took
        self._quickest[piece] = min(took, self._quickest.get(piece, took))
        free = self._free.setdefault(piece, deque(maxlen=_KNOWN))
        if not behind:
            free.append(took)
            return took
        if steady:
            return min(took, _HELD_UP * self._quickest[piece])
        return min(took, _HELD_UP * median(free)) if len(free) >= _ENOUGH else took
