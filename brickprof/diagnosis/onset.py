"""How a run stood at its very beginning, before any update could have spoilt it.

Enters: a case. Leaves: an ``Onset``: the first gradient norm against the weights and the loss, and the warm-up that a
configuration declares.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from brickprof.diagnosis.case import Case
from brickprof.rules.divergence import ordinary_rate
from brickprof.rules.handling import plain_number
from brickprof.rules.norms import yardstick

HUGE_REACH = 1e4
"""A loss that would move by ten thousand of its own sizes if the weights moved by theirs: hundreds is usual."""
LARGE_REACH = 300.0
_BIG_INPUTS = 30.0


class Onset(NamedTuple):
    norm: float | None = None
    reach: float = 0.0
    evidence: tuple[str, ...] = ()
    inputs: float | None = None
    """The size of the first inputs, where they were looked at."""
    ordinary: str = ""
    """That the learning rate is one in common use, in words."""
    warmup: tuple[str, float, str] | None = None
    """The declared key, its number of steps, and the record that says so."""

    @property
    def huge(self) -> bool:
        """Whether gradients were out of all proportion before the first update, and not because of the inputs."""
        return self.reach >= HUGE_REACH and self._inputs_ordinary

    @property
    def _inputs_ordinary(self) -> bool:
        return self.inputs is None or self.inputs < _BIG_INPUTS

    @property
    def large(self) -> bool:
        """Whether gradients were large before the first update, and the learning rate is one in common use."""
        return self.huge or (bool(self.ordinary) and self.reach >= LARGE_REACH and self._inputs_ordinary)

    @property
    def text(self) -> str:
        if self.norm is None:
            return "no gradient norm was seen before the first update"
        return (
            f"the gradient norm was {self.norm:.3g} before the first update: if the weights moved by their own size, "
            f"the loss would move by {self.reach:.1g} times its own"
        ) + (f"; {self.ordinary}" if self.ordinary else "")


def onset(case: Case, rank: int) -> Onset:
    norms, measure = case.story.norms(rank).finite(), yardstick(case.story, rank)
    first_loss = case.story.losses(rank).finite().values[:1]
    warmup = declared_warmup(case)
    if not len(norms) or measure is None or norms.steps[0] > 1 or not len(first_loss) or not first_loss[0]:
        return Onset(warmup=warmup)
    norm = float(norms.values[0])
    reach = norm * measure.weights / abs(float(first_loss[0]))
    sizes = case.story.track("batch", "absmax", rank).finite().values[:8]
    inputs = float(np.median(sizes)) if len(sizes) else None
    return Onset(norm, reach, norms.evidences((0,)), inputs, ordinary_rate(case.story, rank), warmup)


def declared_warmup(case: Case) -> tuple[str, float, str] | None:
    """The number of warm-up steps that a configuration file or the command line asks for."""
    for key, (value, evidence) in case.story.declared.items():
        name = re.sub(r"[^a-z0-9]+", "_", key.lower().rpartition(".")[2])
        steps = plain_number(value)
        if "warmup" in name.replace("warm_up", "warmup") and steps is not None and steps >= 1:
            return key, steps, evidence
    return None
