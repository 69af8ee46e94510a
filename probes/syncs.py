"""Host reads: how often, where, and for how long the script waits for a tensor's value.

Enters: sampled steps. Leaves: a ``syncs`` event for each: on a device every such read waits for it.
"""

from __future__ import annotations

from typing import Any

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import compiled_frames
from brickprof.capture.taps import reads

_MOST_SITES = 16


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

    def step_begin(self, step: int) -> None:
        if self.session.on.full and not (self._compiled or compiled_frames() > self._frames):
            reads.watch()
            self._counting = True

    def step_end(self, step: int) -> None:
        if self._counting:
            self._counting = False
            self.session.fact("syncs", _fields(reads.unwatch()), step=step, wanted=True)

    def compiling(self, module: Any) -> None:
        """A wrapped method would be traced into the graph."""
        self._compiled, self._counting = True, False
        reads.unwatch()

    def close(self) -> None:
        self._counting = False
        reads.unwatch()


def _fields(found: dict[reads.Read, reads.Tally]) -> dict[str, Any]:
    lines: dict[str, list[int]] = {}
    for read, tally in found.items():
        row = lines.setdefault(read.site, [0, 0, 0, 0])
        row[:] = [row[0] + tally.count, row[1] + tally.whole, row[2] + tally.device, row[3] + tally.ns]
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
    if reads.own.count:
        fields["torch"] = [reads.own.count, reads.own.ns]
    return fields
