"""Kernel bricks: every launch of a Triton kernel, and of ours its shapes, its bytes, and how many binaries it took.

Enters: launches of ``brickprof.operators``, and through Triton's hooks of any other kernel, in steps whose spans are
wanted; nothing at all in a run that has none. Leaves: a kernel span for each launch (the host's time to queue it; on a
device when and how long it ran, by marks as blocks have them; bytes and operations as attributes), a ``kernel`` event
for each new combination of shapes, ``launches`` for each such step (how often each kernel, and from which line),
a ``fallback`` event the first time that torch takes an operation's place, and ``kernels``: launches and binaries of
each of our kernels, all told.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from brickprof.bricks import Brick, Kind
from brickprof.capture import sites
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import compiled_frames
from brickprof.capture.taps import triton_launches

_counter = time.perf_counter_ns
_MOST_SHAPES = 256
_MOST_SPANS = 4096
"""Of one step; the rest is counted."""
_MOST_TOLD = 16


class LaunchesProbe(Probe):
    name = "launches"
    ways = ("spans", "full")
    levels = ("standard", "deep")
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._listening = self._hooked = self._inside = False
        self._compiled = False
        self._frames = compiled_frames()
        self._step: Counter[tuple[str, str]] = Counter()
        """Launches of this step, by kernel and line."""
        self._told: dict[str, Any] = {}
        self._shapes: set[str] = set()
        self._fallbacks: set[str] = set()

    def step_begin(self, step: int) -> None:
        self._inside = False
        wanted = self.session.on.spans
        if wanted is not self._listening and (kernels := _kernels()) is not None:
            self._listening = wanted
            kernels.listen(self if wanted else None)
        hears = wanted and not (self._compiled or compiled_frames() > self._frames)
        if hears is not self._hooked:
            self._hook(hears)

    def step_end(self, step: int) -> None:
        self._tell_step(step)
        if self._listening and self.session.on.full:
            self._tell()

    def compiling(self, module: Any) -> None:
        """Inductor's launchers are made differently, for good, where a hook is in place when they are made."""
        self._compiled = True
        self._hook(False)

    def _hook(self, wanted: bool) -> None:
        if wanted:
            self._hooked = triton_launches.listen(self.launched)
        else:
            triton_launches.stop()
            self._hooked = False

    def close(self) -> None:
        if self._listening and (kernels := _kernels()) is not None:
            kernels.listen(None)
        if self._hooked:
            self._hook(False)
        self._listening = False
        self._tell()

    def begin(self, launch: Any) -> Callable[[], None] | None:
        """A kernel of ours is about to be queued. What this takes is charged as the probe's own."""
        called = _counter()
        self._inside = True
        self._step[launch.kernel, sites.caller()] += 1
        brick = self.session.journal.brick(Brick(Kind.KERNEL, launch.kernel))
        self._remember(launch, brick)
        return self._open(brick, f'{{"bytes":{launch.bytes},"flops":{launch.flops}}}', called)

    def launched(self, name: str, site: str) -> Callable[[], None] | None:
        """Triton is about to queue a kernel; ours were told of already."""
        if self._inside:
            return None
        called = _counter()
        self._step[name, site] += 1
        if self._step.total() > _MOST_SPANS:
            return None
        brick = self.session.journal.brick(Brick(Kind.KERNEL, name))
        return self._open(brick, json.dumps({"site": site, "source": "triton"}), called)

    def _open(self, brick: int, moved: str, called: int) -> Callable[[], None]:
        session, trace = self.session, self.session.trace
        number = trace.open(brick, trace.phase(), current=True)

        def ended() -> None:
            resumed = _counter()
            self._inside = False
            trace.close(number, write=True, attributes=moved, kernel=True)
            session.charge(self.name, _counter() - resumed)

        session.charge(self.name, _counter() - called)
        return ended

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

    def _tell_step(self, step: int) -> None:
        """How often each kernel was launched in the step, and from where most."""
        counted, self._step = self._step, Counter()
        if not counted:
            return
        kernels: Counter[str] = Counter()
        for (name, _), times in counted.items():
            kernels[name] += times
        lines = {name: site for (name, site), _ in reversed(counted.most_common())}
        rows = [[name, times, lines[name]] for name, times in kernels.most_common(_MOST_TOLD)]
        self.session.fact("launches", {"count": counted.total(), "kernels": rows}, step=step, wanted=True)

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
