"""The loops that updates are made in: how many rounds the script itself gives them.

Enters: the first update of each optimizer, later ones in sampled steps. Leaves: a ``loops`` event for each optimizer,
again where it changed: the loops around the update, outermost first, each with what it runs over as it is written and
the rounds that this gives, where the source says it. Nothing of it is run.
"""

from __future__ import annotations

import sys
from typing import Any

from brickprof.capture import loops
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session

_MOST = 16


class LoopsProbe(Probe):
    name = "loops"
    ways = ("facts", "full")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._told: dict[int, list[loops.Loop]] = {}
        self._written = 0

    def optimizer_begin(self, optimizer: Any) -> None:
        number = self.session.book.optimizer(optimizer)
        known = self._told.get(number)
        if self._written >= _MOST or (known is not None and not self.session.on.full):
            return
        found = loops.around(sys._getframe(1))
        if found == known:
            return
        self._told[number] = found
        self._written += 1
        rows = [each._asdict() for each in found]
        self.session.fact("loops", {"optimizer": number, "loops": rows}, always=True)

    def close(self) -> None:
        loops.forget()
