"""Bricks as NVTX ranges, under the titles that every export gives them, so that Nsight Systems shows them.

Enters: bricks that open and close in steps whose bricks are traced. Leaves: ranges in the domain ``brickprof``; nothing
at all unless somebody looks: under nsys, which sets NSYS_PROFILING_SESSION_ID, or with BRICKPROF_NVTX=1.

What nests on the thread of the training is pushed and popped. What runs wherever autograd runs it (the backward of a
block, what is recomputed), and copies, which any thread makes, are started and ended: such a range belongs to no
thread, and is ended once, whoever comes first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from typing import Any

from brickprof.bricks import Brick, title
from brickprof.records import PHASES

DOMAIN = "brickprof"
_ASKED, _UNDER_NSYS = "BRICKPROF_NVTX", "NSYS_PROFILING_SESSION_ID"


_NONE: Any = object()
_PUSHED = 0
_RECOMPUTE = PHASES.index("recompute")


class Ranges:
    """The ranges that are open, as deep as the bricks are, and those that are open beside them."""

    def __init__(self, bricks: Mapping[Brick, int], nvtx: Any) -> None:
        self._bricks = bricks
        self._nvtx = nvtx
        self._known: dict[int, Brick] = {}
        self._titles: dict[tuple[int, int], str] = {}
        self._nest: list[int] = []
        self._numbers = itertools.count(1)
        self._started: dict[int, Any] = {}
        self._marked: list[int] = []

    def push(self, brick: int, phase: int) -> None:
        if phase == _RECOMPUTE:
            self._nest.append(self.start(brick, phase))
            return
        self._nvtx.push_range(self._shown(brick, phase), domain=DOMAIN)
        self._nest.append(_PUSHED)

    def pop(self, depth: int) -> None:
        """Closes ranges until ``depth`` are open."""
        while len(self._nest) > depth:
            number = self._nest.pop()
            if number == _PUSHED:
                self._nvtx.pop_range(domain=DOMAIN)
            else:
                self.end(number)

    # -- beside the nest, on any thread

    def start(self, brick: int, phase: int) -> int:
        """Opens a range that nests in nothing; returns the number to end it with."""
        number = next(self._numbers)
        with contextlib.suppress(Exception):  # hooks of autograd call this: nothing may be raised into a backward
            self._started[number] = self._nvtx.start_range(self._shown(brick, phase), domain=DOMAIN)
        return number

    def end(self, number: int) -> None:
        """Ends what ``start`` opened, unless that was done."""
        handle = self._started.pop(number, _NONE)
        if handle is not _NONE:
            with contextlib.suppress(Exception):
                self._nvtx.end_range(handle)

    def mark(self, brick: int, phase: int) -> None:
        """Opens a range that lasts until the next mark."""
        self.unmark()
        self._marked.append(self.start(brick, phase))

    def unmark(self) -> None:
        marked, self._marked = self._marked, []
        for number in marked:
            self.end(number)

    def end_all(self) -> None:
        """The step is over: so is whatever was started in it, also where its end was never told."""
        for number in list(self._started):
            self.end(number)
        self._marked = []

    # -- names

    def _shown(self, brick: int, phase: int) -> str:
        if brick not in self._known:
            self._learn()
        shown = self._titles.get((brick, phase))
        if shown is None:
            shown = self._titles[brick, phase] = self._title(brick, phase)
        return shown

    def _learn(self) -> None:
        """A brick is new, and perhaps with it a second model: then all names carry theirs."""
        self._known = {number: each for each, number in list(self._bricks.items())}  # another thread may add one
        self._titles = {}

    def _title(self, brick: int, phase: int) -> str:
        known = self._known.get(brick)
        models = {each.model for each in self._known.values()} - {""}
        return "?" if known is None else title(known, PHASES[phase], qualified=len(models) > 1)


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
