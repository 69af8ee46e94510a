"""Kernel bricks: every launch of an instrumented kernel, its shapes, its bytes, and how many binaries it took.

Enters: launches of ``brickprof.operators`` in steps whose spans are wanted; nothing at all in a run that uses none of
them. Leaves: a kernel span for each launch (the host's time to queue it; bytes and operations as attributes), a
``kernel`` event for each new combination of shapes, a ``fallback`` event the first time that torch takes an operation's
place, and ``kernels``: launches and binaries of each kernel, all told.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from brickprof.bricks import Brick, Kind
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session

_MOST_SHAPES = 256


class LaunchesProbe(Probe):
    name = "launches"
    ways = ("spans", "full")
    levels = ("standard", "deep")
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._listening = False
        self._told: dict[str, Any] = {}
        self._shapes: set[str] = set()
        self._fallbacks: set[str] = set()

    def step_begin(self, step: int) -> None:
        wanted = self.session.on.spans
        if wanted is not self._listening and (kernels := _kernels()) is not None:
            self._listening = wanted
            kernels.listen(self if wanted else None)

    def step_end(self, step: int) -> None:
        if self._listening and self.session.on.full:
            self._tell()

    def close(self) -> None:
        if self._listening and (kernels := _kernels()) is not None:
            kernels.listen(None)
        self._listening = False
        self._tell()

    def begin(self, launch: Any) -> Callable[[], None] | None:
        """A kernel is about to be queued."""
        session = self.session
        brick = session.journal.brick(Brick(Kind.KERNEL, launch.kernel))
        self._remember(launch, brick)
        trace = session.trace
        number = trace.open(brick, trace.phase())
        moved = f'{{"bytes":{launch.bytes},"flops":{launch.flops}}}'
        return lambda: _close(trace, number, moved)

    def fell_back(self, operation: str, reason: str) -> None:
        if operation not in self._fallbacks:
            self._fallbacks.add(operation)
            self.session.fact("fallback", {"operation": operation, "reason": reason}, always=True)

    def _remember(self, launch: Any, brick: int) -> None:
        key = f"{launch.kernel}{launch.shapes}{launch.dtypes}"
        if key not in self._shapes and len(self._shapes) < _MOST_SHAPES:
            self._shapes.add(key)
            shapes = {name: list(shape) for name, shape in launch.shapes.items()}
            fields = {"brick": brick, "shapes": shapes, "dtypes": dict(launch.dtypes)}
            self.session.fact("kernel", {**fields, "bytes": launch.bytes, "flops": launch.flops}, always=True)

    def _tell(self) -> None:
        kernels = _kernels()
        if kernels is None:
            return
        counted = {name: [each.launches, each.binaries] for name, each in kernels.counts().items() if each.launches}
        told = {"kernels": counted, "fallbacks": kernels.fallbacks()}
        if told != self._told and any(told.values()):
            self._told = json.loads(json.dumps(told))
            self.session.fact("kernels", told, always=True)


def _kernels() -> Any:
    """The module that launches our kernels, if this process uses them."""
    return sys.modules.get("brickprof.operators.launch")


def _close(trace: Any, number: int, attributes: str) -> None:
    trace.close(number, write=True, attributes=attributes)
