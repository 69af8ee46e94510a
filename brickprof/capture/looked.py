"""When brickprof was at work in a step, outside of every brick of it.

Enters: stretches of the training thread's time. Leaves: for the step's span, when in the step these lie, so that what
covers the step is known: a gap between two bricks may be the script's own, or ours.
"""

from __future__ import annotations

_MOST = 64
_LEAST_NS = 2000
"""Shorter ones are not told: they cover nothing."""


class Looked:
    __slots__ = ("_stretches",)

    def __init__(self) -> None:
        self._stretches: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        if len(self._stretches) < 4 * _MOST:
            self._stretches.append((start, end))

    def told(self, begin: int, end: int) -> str:
        """The longest between ``begin`` and ``end``, from ``begin`` on, as JSON; the next step begins with none."""
        inside = [(max(start, begin) - begin, min(over, end) - begin) for start, over in self._stretches]
        self._stretches.clear()
        longest = sorted((each for each in inside if _length(each) >= _LEAST_NS), key=_length, reverse=True)
        return "[" + ",".join(f"[{start},{over}]" for start, over in sorted(longest[:_MOST])) + "]"


def _length(stretch: tuple[int, int]) -> int:
    return stretch[1] - stretch[0]
