"""Transfer bricks: every copy between host and device, which way, how large, whether the host waited, who asked.

Enters: copies in sampled steps (``taps.copying``). Leaves: a transfer span for each, and a ``transfers`` event that
sums them up by line, less those within one device, which no budget counts. Nothing where something was compiled: the
functions that copy would be traced into the graph.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture import sites
from brickprof.capture.copies import PIN, TRANSFERS, Copy
from brickprof.capture.probe import Probe
from brickprof.capture.ranges import Ranges
from brickprof.capture.session import Session
from brickprof.capture.surroundings import compiled_frames
from brickprof.capture.taps import copying
from brickprof.capture.trace import PHASE

_counter = time.perf_counter_ns
_MOST_ROWS = 16
_MOST_SPANS = 512
"""Of one step; the rest is counted."""
_MOST_WITHIN = 64
"""Spans of copies within one device: averages of all weights may be kept so, and others need the room."""
Key = tuple[str, str, bool | None, bool]


class TransfersProbe(Probe):
    name = "transfers"
    ways = ("full",)
    levels = ("standard", "deep")
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._counting = False
        self._compiled = False
        self._frames = compiled_frames()
        self._clear()

    def _clear(self) -> None:
        self._rows: dict[Key, list[int]] = {}
        """By line, direction, pinned, blocking: copies, bytes, nanoseconds."""
        self._home: dict[str, tuple[set[int], list[int]]] = {}
        """By line, of tensors that went to the host and are no part of the graph: after which backwards; copies,
        bytes."""
        self._devices: set[str] = set()
        self._spans = self._within = self._backwards = 0

    def step_begin(self, step: int) -> None:
        if self.session.on.full and has_device() and not (self._compiled or compiled_frames() > self._frames):
            self._clear()
            self._counting = True
            copying.watch(self)

    def step_end(self, step: int) -> None:
        if self._counting:
            self._stop()
            self.session.fact("transfers", self._fields(), step=step, wanted=True)

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        self._backwards += 1

    def compiling(self, module: Any) -> None:
        self._compiled = True
        self._stop()

    def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        self._counting = False
        copying.unwatch(self)

    # -- copies

    def copying(self, way: copying.Way, *, timed: bool) -> tuple[Any, int]:
        """Where the copy begins on the device, and the range that it is for Nsight, where somebody looks."""
        trace = self.session.trace
        here = threading.get_ident() == self.session.thread
        seen = self._within < _MOST_WITHIN or way() != "D2D"
        mark = trace.clock.mark() if seen and timed and here and trace.clock.running else None
        return mark, 0 if trace.ranges is None else self._range(way(), here, trace.ranges)

    def _range(self, way: str, here: bool, ranges: Ranges) -> int:
        wanted = way in TRANSFERS or (way == PIN and here)
        if not wanted or sites.asked(sys._getframe(2)) is None:
            return 0
        return ranges.start(self.session.journal.brick(Brick(Kind.TRANSFER, way)), PHASE["transfer"])

    def queued(self, mark: tuple[Any, int]) -> None:
        if mark[1] and self.session.trace.ranges is not None:
            self.session.trace.ranges.end(mark[1])

    def copied(self, copy: Copy, mark: Any) -> None:
        called = _counter()
        here = threading.get_ident() == self.session.thread
        if copy.within:
            self._within += 1
            if self._within <= _MOST_WITHIN:
                self._span(copy, mark[0] if mark else None, here)
        elif copy.direction in TRANSFERS or here:  # a loader's own thread pins batches ahead of time, as it should
            self._add(copy)
            self._span(copy, mark[0] if mark else None, here)
        self.session.charge(self.name, _counter() - called)

    def _add(self, copy: Copy) -> None:
        row = self._rows.setdefault((copy.site, copy.direction, copy.pinned, copy.blocking), [0, 0, 0])
        row[:] = [row[0] + 1, row[1] + copy.bytes, row[2] + copy.end - copy.start]
        if copy.device and copy.direction != PIN:
            self._devices.add(copy.device)
        if copy.direction == "D2H" and not copy.differentiable and copy.how != "backward":
            after, sums = self._home.setdefault(copy.site, (set(), [0, 0]))
            after.add(self._backwards)
            sums[:] = [sums[0] + 1, sums[1] + copy.bytes]

    def _span(self, copy: Copy, mark: Any, here: bool) -> None:
        self._spans += not copy.within
        if self._spans > _MOST_SPANS:
            return
        trace = self.session.trace
        brick = self.session.journal.brick(Brick(Kind.TRANSFER, copy.direction))
        parent = trace.parent() if here or copy.how == "backward" else trace.step_id
        row = (
            trace.new_id(), parent, brick, PHASE["transfer"], trace.step, trace.micro, copy.start, copy.end, None, None,
            json.dumps(_attributes(copy)),
        )  # fmt: skip
        trace.write(row, mark)

    # -- the step in sum

    def _fields(self) -> dict[str, Any]:
        rows = sorted(self._rows.items(), key=lambda item: (-item[1][0], -item[1][1]))
        moved = [sums for (_, way, _, _), sums in rows if way in TRANSFERS]
        return {
            "count": sum(count for count, _, _ in moved),
            "bytes": sum(size for _, size, _ in moved),
            "ns": sum(ns for _, _, ns in moved),
            "backwards": self._backwards,
            "device": sorted(self._devices),
            "rows": [[site, way, *sums[:2], pinned, blocking, sums[2]] for (site, way, pinned, blocking), sums in rows][
                :_MOST_ROWS
            ],
            "home": [[site, len(after), *sums] for site, (after, sums) in self._home.items()][:_MOST_ROWS],
        }


def _attributes(copy: Copy) -> dict[str, Any]:
    told: dict[str, Any] = {
        "direction": copy.direction, "bytes": copy.bytes, "pinned": copy.pinned, "blocking": copy.blocking,
        "how": copy.how, "site": copy.site, "device": copy.device,
    }  # fmt: skip
    if copy.non_blocking:
        told["non_blocking"] = True
    if copy.within:
        told["within"] = True
    stream = _stream(copy.device)
    return told if stream is None else {**told, "stream": stream}


def _stream(device: str) -> int | None:
    """The stream that is current on ``device``, by CUDA's own number."""
    if not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_stream(torch.device(device)).cuda_stream)


def has_device() -> bool:
    """Whether there is anything to copy to: a run on a CPU goes without all of this."""
    xpu = sys.modules.get("torch.xpu")
    return torch.cuda.is_initialized() or bool(xpu is not None and xpu.is_initialized())
