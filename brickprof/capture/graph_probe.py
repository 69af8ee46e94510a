"""What probes that read the graph behind a loss have in common: when they look.

Enters: backward passes. Leaves: a call of ``look`` with the loss of a sampled step and the nodes behind it, its time
booked, as often as the probe asks for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from brickprof.capture import graph
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off


class GraphProbe(Probe):
    ways = ("full",)
    levels = ("standard", "deep")
    most_looks: float = 4

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.looks = 0

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        session = self.session
        if self.looks >= self.most_looks or not session.on.full or session.steps.backwards > 1 or hands_off():
            return
        start = time.perf_counter_ns()
        self.looks += 1
        for loss in losses[:1]:
            self.look(loss, graph.nodes(loss))
        session.spend("full", time.perf_counter_ns() - start)

    def look(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        """One look at the graph, which is let go right after it."""
        raise NotImplementedError
