"""Host reads: how often, and where, the script asks for a tensor's value.

Enters: sampled steps. Leaves: a ``syncs`` event for each: on a device every such read waits for it.
"""

from __future__ import annotations

from typing import Any

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
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

    def step_begin(self, step: int) -> None:
        if self.session.on.full and not self._compiled:
            reads.watch()
            self._counting = True

    def step_end(self, step: int) -> None:
        if self._counting:
            self._counting = False
            found = reads.unwatch()
            sites = sorted(found.items(), key=lambda item: -item[1])[:_MOST_SITES]
            fields = {
                "count": sum(found.values()),
                "device": reads.device,
                "sites": [[*site, reads.moved.get(site[0], 0)] for site in sites],
            }
            self.session.fact("syncs", fields, step=step, wanted=True)

    def compiling(self, module: Any) -> None:
        """A wrapped method would be traced into the graph."""
        self._compiled, self._counting = True, False
        reads.unwatch()

    def close(self) -> None:
        self._counting = False
        reads.unwatch()
