"""Bricks as NVTX ranges, under the titles that every export gives them, so that Nsight Systems shows them.

Enters: bricks that open and close in steps whose bricks are traced. Leaves: ranges in the domain ``brickprof``; nothing
at all unless somebody looks: under nsys, which sets NSYS_PROFILING_SESSION_ID, or with BRICKPROF_NVTX=1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from brickprof.bricks import Brick, title
from brickprof.records import PHASES

DOMAIN = "brickprof"
_ASKED, _UNDER_NSYS = "BRICKPROF_NVTX", "NSYS_PROFILING_SESSION_ID"


class Ranges:
    """The ranges that are open, as deep as the bricks are."""

    def __init__(self, bricks: Mapping[Brick, int], nvtx: Any) -> None:
        self._bricks = bricks
        self._nvtx = nvtx
        self._known: dict[int, Brick] = {}
        self._titles: dict[tuple[int, int], str] = {}
        self.depth = 0

    def push(self, brick: int, phase: int) -> None:
        if brick not in self._known:
            self._learn()
        shown = self._titles.get((brick, phase))
        if shown is None:
            shown = self._titles[brick, phase] = self._title(brick, phase)
        self._nvtx.push_range(shown, domain=DOMAIN)
        self.depth += 1

    def _learn(self) -> None:
        """A brick is new, and perhaps with it a second model: then all names carry theirs."""
        self._known = {number: each for each, number in list(self._bricks.items())}  # another thread may add one
        self._titles = {}

    def _title(self, brick: int, phase: int) -> str:
        known = self._known.get(brick)
        models = {each.model for each in self._known.values()} - {""}
        return "?" if known is None else title(known, PHASES[phase], qualified=len(models) > 1)

    def pop(self, depth: int) -> None:
        """Closes ranges until ``depth`` are open."""
        while self.depth > depth:
            self._nvtx.pop_range(domain=DOMAIN)
            self.depth -= 1


def wanted(bricks: Mapping[Brick, int]) -> Ranges | None:
    """Ranges, where somebody looks at them and NVTX is installed."""
    asked = os.environ.get(_ASKED)
    if asked == "0" or not (asked or os.environ.get(_UNDER_NSYS)):
        return None
    try:
        import nvtx
    except ImportError:
        return None
    return Ranges(bricks, nvtx)
