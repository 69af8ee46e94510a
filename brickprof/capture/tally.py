"""Of how many steps something is known.

Enters: steps, in about the order of the training, some of them more than once. Leaves: how many there were.
"""

from __future__ import annotations

from collections.abc import Iterable

_REMEMBERED = 4096
"""What comes home from a device later than that is counted a second time."""


class Tally:
    __slots__ = ("_lately", "count")

    def __init__(self) -> None:
        self.count = 0
        self._lately: dict[int, None] = {}

    def add(self, steps: Iterable[int]) -> None:
        lately = self._lately
        for step in steps:
            if step not in lately:
                self.count += 1
                lately[step] = None
        while len(lately) > _REMEMBERED:
            del lately[next(iter(lately))]
