"""The frame of a step: its backward passes and optimizer updates as spans.

Enters: the beginnings and ends of both. Leaves: ``backward`` and ``optimizer`` spans, in which the blocks' own
spans nest. (Forward spans are the blocks probe's, the loader's are the loader probe's.)
"""

from __future__ import annotations

from typing import Any

from brickprof.bricks import Brick, Kind
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.trace import PHASE


class TimelineProbe(Probe):
    name = "timeline"
    ways = ("spans", "full", "facts")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._backward = session.journal.brick(Brick(Kind.STEP, "backward"))
        self._open_backward = 0
        self._open_optimizer: dict[int, int] = {}

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        if self.session.tracing:
            self._open_backward = self.session.trace.open(self._backward, PHASE["backward"])

    def backward_end(self, losses: Any, ok: bool) -> None:
        if not self.session.tracing:
            return
        trace = self.session.trace
        trace.close_marks(self._open_backward, write=self.session.on.spans)
        if ok:  # a backward that raised stays open: that is where the run ended
            trace.close(self._open_backward, write=True)

    def optimizer_begin(self, optimizer: Any) -> None:
        if not self.session.tracing:
            return
        number = self.session.book.optimizer(optimizer)
        name = type(optimizer).__name__ + (f"#{number}" if number else "")
        brick = self.session.journal.brick(Brick(Kind.OPTIMIZER, name))
        self._open_optimizer[number] = self.session.trace.open(brick, PHASE["optimizer"])

    def optimizer_end(self, optimizer: Any) -> None:
        if self.session.tracing:
            opened = self._open_optimizer.pop(self.session.book.optimizer(optimizer), 0)
            self.session.trace.close(opened, write=True)
