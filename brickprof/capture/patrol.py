"""Looks out over block outputs from step to step, where no stretch of noted steps does (see ``sentry``).

Enters: from the lookout, each step that begins and each backward of it. Leaves: some steps later what was counted, as
after a stretch.

There are no stretches in a training that differentiates several times before it updates, has several optimizers, a
loss scaler or other ranks beside it. What makes a look cheap does not need them: hooks that stay on, a launch that
knows its addresses, and one read for many backwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from brickprof.capture.sentry import LAUNCH_NS, Sentry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from brickprof.capture.lookout import Lookout
    from brickprof.capture.sentry import Sentries

MOST_STEPS = 32
MOST_NS = 800_000_000
"""Whoever waits for what was counted gets it by then."""
_HELD_UP = 2.0
"""A look that takes so many times what it usually does was waiting for the device, as the training would have."""
_counter = time.perf_counter_ns
_Tensor = torch.Tensor


class Patrol(Sentry):
    """Some steps, one after another."""

    __slots__ = ("_first", "_length", "_moments", "_per_step", "_until")

    def __init__(
        self, sentries: Sentries, lookout: Lookout, blocks: Sequence[tuple[nn.Module, int]],
        known: Mapping[int, int], backwards: int,
    ) -> None:  # fmt: skip
        super().__init__(sentries, lookout, blocks, known, backwards)
        self._per_step = lookout.backwards
        self._length = backwards // lookout.backwards
        self._first = -1
        self._until = _counter() + MOST_NS
        self._moments: dict[int, tuple[int, int]] = {}
        """The step and the micro-batch of each backward."""

    def goes_on(self, step: int) -> bool:
        """``step`` begins: whether it is one more of these."""
        if self._first < 0:
            self._first = step
        room = self._backwards + self._per_step < self._steps
        return room and step - self._first < self._length and _counter() < self._until

    def differentiates(self, losses: Sequence[Any]) -> None:
        """A backward of ``losses`` begins, whose time is paid for."""
        place, counted, before = self._backwards, len(self._took), self.spent_ns
        session, sentries = self.session, self._sentries
        if len(losses) != 1 or type(losses[0]) is not _Tensor:
            self.glances.clear()
            return
        self._moments[place] = (session.step, max(session.steps.backwards - 1, 0))
        self.backward(losses[0], place)
        took, looked = self.spent_ns - before, len(self._took) > counted
        if sentries.hidden:
            ours = float(LAUNCH_NS * looked)
        else:
            usual = sentries.counts_ns
            ours = sentries.hooks_ns + (min(took, _HELD_UP * usual) if usual and looked else took)
        if self._young:
            session.correct(-took)
            session.charge_start(int(ours))
        else:
            session.correct(int(ours) - took)

    def relieve(self) -> None:
        """No other step is looked at by this one."""
        try:
            self.dismiss()
            self._lookout.looks += len(self._took)
            self._fetch(self._moments)
            told = self._took, self.hooks_ns, self._per_step
            self._sentries.relieved(*told, young=self._young, behind=self._behind)
        except Exception as error:
            self._lookout.failed(error)
