"""Looks out over block outputs in a stretch of steps that are only noted (see ``stretch``).

Enters: each backward of the stretch, with its loss and the outputs that were remembered since the one before. Leaves:
when the stretch is over and what was counted has come home, the first step in which an output was not finite.

What is counted stays on the device until then, added to a table that nobody reads meanwhile: a look is one launch, and
where the outputs lie where they lay in the step before, nothing else is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from brickprof.capture.outputs import Output, Seen, left
from brickprof.capture.surroundings import hands_off

_ALIGNED = 16
_counter = time.perf_counter_ns
Arrived = Callable[[int, int, Sequence[Seen], list[list[int]]], None]
"""Told step, micro-batch, outputs in the order of the forward, and (nan, inf) of each."""


class Sentry:
    """No tensor of the script's lives longer for it."""

    __slots__ = ("_bricks", "_counts", "_most", "_out", "_rows", "_seen", "_shown", "_steps", "took")

    def __init__(self, counts: Any, steps: int, most: int) -> None:
        """For ``steps`` steps, with ``most`` blocks or more."""
        self._counts = counts
        self._steps = steps + 1  # the one behind the last may begin before anybody notices
        self._most = most
        self._out: torch.Tensor | None = None
        """(nan, inf) of each output, so many for each step."""
        self._bricks: list[int] = []
        self._rows: list[int] = []
        self._shown: list[Seen] = []
        """What was counted last: of which bricks, where and how large, and the same in words."""
        self._seen: dict[int, list[Seen]] = {}
        """By the place of the step."""
        self.took: list[int] = []

    @property
    def steps(self) -> int:
        """How many were looked at."""
        return len(self._seen)

    def count(self, kept: Sequence[Output], loss: torch.Tensor, place: int) -> None:
        """A backward begins with ``loss``, in the step of that ``place``."""
        start, device, counts = _counter(), loss.get_device(), self._counts
        if place >= self._steps or not counts.compiled(device) or loss.data_ptr() % _ALIGNED or hands_off():
            return
        found = left(kept, device, counts.readable)
        if self._out is None and found.values:
            self._most = max(len(found.values), self._most)
            self._out = torch.zeros((self._steps * self._most, 2), dtype=torch.int64, device=loss.device)
        if self._out is None or not 0 < len(found.values) <= self._most:
            return
        counts.add(loss.detach(), found, self._out, place * self._most)
        bricks = [kept[at][4] for at in found.places]
        if found.rows != self._rows or bricks != self._bricks:
            self._rows, self._bricks, self._shown = found.rows, bricks, found.seen(kept)
        self._seen[place] = self._shown
        self.took.append(_counter() - start)

    def fetch(self, first: int, readback: Any, arrived: Arrived) -> None:
        """The stretch is over, whose first step was ``first``."""
        if self._out is not None:
            seen, most = self._seen, self._most
            readback.read(self._out, lambda host: _tell(arrived, host, first, seen, most))


def _tell(arrived: Arrived, host: torch.Tensor, first: int, seen: dict[int, list[Seen]], most: int) -> None:
    """The first step in which anything was broken: those behind it are for the same reason."""
    if not bool(host.any()):
        return
    for place, outputs in seen.items():
        counts = host[place * most : place * most + len(outputs)].tolist()
        if any(nan or inf for nan, inf in counts):
            arrived(first + place, 0, outputs, counts)
            return
