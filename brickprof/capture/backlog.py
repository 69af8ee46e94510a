"""What looking costs when nothing is in its way.

Enters: how long a piece of looking took the host, and whether the device was behind just then. Leaves: what of it is
our cost. Whoever queues work for a device that is far behind waits for a place in its queue, the training as well as
we; it would have waited there without us, so the wait is the step's. What the same piece took at its quickest tells the
two apart.
"""

from __future__ import annotations

_HELD_UP = 2.0
"""A piece that takes so many times its quickest, while the device is behind, was held up."""


class Backlog:
    def __init__(self) -> None:
        self._quickest: dict[str, float] = {}

    def quickest(self, piece: str) -> float:
        return self._quickest.get(piece, 0.0)

    def cost(self, piece: str, took: float, *, behind: bool) -> float:
        """Of the time that ``piece`` took, the part that is ours."""
        quickest = self._quickest[piece] = min(took, self._quickest.get(piece, took))
        return min(took, _HELD_UP * quickest) if behind else took
