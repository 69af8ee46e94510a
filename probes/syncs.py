"""Host reads: how often, where, and for how long the script waits for a tensor's value, or for a device.

Enters: sampled steps. Leaves: a ``syncs`` event for each: on a device every such read waits for it, and each of those
is a host sync brick in whatever is open.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from brickprof.bricks import Brick, Kind
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import compiled_frames
from brickprof.capture.taps import reads
from brickprof.capture.trace import PHASE

_MOST_SITES = 16
_MOST_SPANS = 256
"""Of one step; the rest is counted."""
_counter = time.perf_counter_ns


class SyncsProbe(Probe):
    name = "syncs"
    ways = ("full",)
    levels = ("standard", "deep")
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._counting = False
        self._compiled = False
        self._frames = compiled_frames()
        self._spans = 0

    def step_begin(self, step: int) -> None:
        if self.session.on.full and not (self._compiled or compiled_frames() > self._frames):
            reads.watch(self._waited)
            self._counting, self._spans = True, 0

    def step_end(self, step: int) -> None:
        if self._counting:
            self._counting = False
            self.session.fact("syncs", _fields(reads.unwatch()), step=step, wanted=True)

    def _waited(self, kind: str, site: str, start: int, end: int) -> None:
        session = self.session
        if not session.on.spans or threading.get_ident() != session.thread or self._spans >= _MOST_SPANS:
            return
        called = _counter()
        self._spans += 1
        trace, brick = session.trace, session.journal.brick(Brick(Kind.HOST_SYNC, kind))
        row = (
            trace.new_id(), trace.parent(), brick, PHASE["sync"], trace.step, trace.micro, start, end, None, None,
            json.dumps({"site": site}) if site else None,
        )  # fmt: skip
        trace.write(row, None)
        session.charge(self.name, _counter() - called)

    def compiling(self, module: Any) -> None:
        """A wrapped method would be traced into the graph."""
        self._compiled, self._counting = True, False
        reads.unwatch()

    def close(self) -> None:
        self._counting = False
        reads.unwatch()


def _fields(told: dict[reads.Read, reads.Tally]) -> dict[str, Any]:
    found = {read: tally for read, tally in told.items() if read.kind not in reads.WAITS}
    waits = sorted(((read, told[read]) for read in told.keys() - found.keys()), key=lambda item: -item[1].ns)
    lines: dict[str, list[int]] = {}
    for read, tally in found.items():
        row = lines.setdefault(read.site, [0, 0, 0, 0, 0])
        row[:] = [
            row[0] + tally.count, row[1] + tally.whole, row[2] + tally.device, row[3] + tally.ns,
            max(row[4], tally.longest),
        ]  # fmt: skip
    sites = sorted(lines.items(), key=lambda item: -item[1][0])[:_MOST_SITES]
    kinds = sorted(found.items(), key=lambda item: -item[1].ns)[:_MOST_SITES]
    fields: dict[str, Any] = {
        "count": sum(row[0] for row in lines.values()),
        "device": sum(row[2] for row in lines.values()),
        "ns": sum(tally.ns for tally in found.values() if tally.device),
        "sites": [[site, *row] for site, row in sites],
        "kinds": [[read.site, read.kind, tally.count, tally.ns] for read, tally in kinds],
    }
    if written := {site: reads.around[site] for site, _ in sites if reads.around.get(site)}:
        fields["around"] = written
    if waits:
        fields["waits"] = [
            [read.site, read.kind, tally.count, tally.ns, tally.longest] for read, tally in waits[:_MOST_SITES]
        ]
    if reads.own.count:
        fields["torch"] = [reads.own.count, reads.own.ns]
    return fields
