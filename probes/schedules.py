"""Learning-rate schedules: which there are, and how often they are stepped.

Enters: ``step`` of torch's schedulers. Leaves: a ``schedule`` event the first time one is stepped (building one steps
it once) and in sampled steps; how often any was stepped so far stands in every ``optimizer`` event (``scheduled``),
with the rates.
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session


class SchedulesProbe(Probe):
    name = "schedules"
    ways = ("facts", "full")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._known: set[int] = set()

    def scheduled(self, scheduler: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None:
            return
        known = id(scheduler) in self._known
        self._known.add(id(scheduler))
        if known and not self.session.on.full:
            return
        rates = [group.get("lr") for group in optimizer.param_groups]
        fields = {
            "cls": type(scheduler).__name__,
            "optimizer": self.session.book.optimizer(optimizer),
            "lr": [float(rate) if _on_host(rate) else None for rate in rates],
            "count": getattr(scheduler, "_step_count", None),
        }
        self.session.fact("schedule", fields, always=True)


def _on_host(rate: Any) -> bool:
    return not isinstance(rate, torch.Tensor) or rate.device.type == "cpu"
