"""Graphs of earlier steps that are still alive: memory that grows with every step.

Enters: losses, in steps whose facts are written. Leaves: ``retained`` events: how many losses of earlier steps still
hold their graph. A mark is left with the graph's last node, and it is asked later whether the mark is still there; a
loss that was added to a running total is seen too.
"""

from __future__ import annotations

import weakref
from typing import Any

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session

_MOST = 256
_KEY = "brickprof"


class _Mark:
    __slots__ = ("__weakref__",)


class RetainedProbe(Probe):
    name = "retained"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._marks: list[tuple[int, weakref.ref[_Mark]]] = []
        self._looked = 0
        self._next = 0

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        session = self.session
        if not session.on.facts or session.steps.backwards > 1:
            return
        self._look(session.step)
        node = losses[0].grad_fn if losses else None
        if node is not None and len(self._marks) < _MOST:
            mark = _Mark()
            node.metadata[_KEY] = mark
            self._marks.append((session.step, weakref.ref(mark)))
            self._looked += 1

    def _look(self, step: int) -> None:
        self._marks = [each for each in self._marks if each[1]() is not None]
        alive = [made for made, _ in self._marks if made < step - 1]
        if len(alive) < self._next and not self.session.on.full:
            return
        self._next = max(2 * len(alive), 2)
        if self._looked > 1:
            fields = {"graphs": len(alive), "since": alive[0] if alive else None, "looked": self._looked}
            self.session.fact("retained", fields)
