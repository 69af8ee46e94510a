"""Bricks as NVTX ranges, under the names they have in the journal, so that Nsight Systems shows them.

Enters: bricks that open and close in steps whose bricks are traced. Leaves: ranges in the domain ``brickprof``; nothing
at all unless somebody looks: under nsys, which sets NSYS_PROFILING_SESSION_ID, or with BRICKPROF_NVTX=1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from brickprof.bricks import Brick

DOMAIN = "brickprof"
_ASKED, _UNDER_NSYS = "BRICKPROF_NVTX", "NSYS_PROFILING_SESSION_ID"


class Ranges:
    """The ranges that are open, as deep as the bricks are."""

    def __init__(self, bricks: Mapping[Brick, int], nvtx: Any) -> None:
        self._bricks = bricks
        self._nvtx = nvtx
        self._names: dict[int, str] = {}
        self.depth = 0

    def push(self, brick: int) -> None:
        if brick not in self._names:
            self._names = {number: each.name(qualified=True) for each, number in self._bricks.items()}
        self._nvtx.push_range(self._names.get(brick, "?"), domain=DOMAIN)
        self.depth += 1

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
