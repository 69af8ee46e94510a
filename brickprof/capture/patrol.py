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
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from brickprof.capture.outputs import gate, stream_of
from brickprof.capture.sentries import LAUNCH_NS
from brickprof.capture.sentry import Sentry
from brickprof.capture.surroundings import hands_off

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from brickprof.capture.lookout import Lookout
    from brickprof.capture.sentries import Sentries

MOST_STEPS = 32
MOST_NS = 800_000_000
"""Whoever waits for what was counted gets it by then."""
_HELD_UP = 2.0
"""A look that takes so many times what it usually does was waiting for the device, as the training would have."""
_counter = time.perf_counter_ns
_Tensor = torch.Tensor


class Patrol(Sentry):
    """Some steps, one after another."""

    __slots__ = ("_first", "_home", "_length", "_moments", "_place", "_until")

    def __init__(
        self, sentries: Sentries, lookout: Lookout, blocks: Sequence[tuple[nn.Module, int]],
        known: Mapping[int, int], steps: int, per_step: int,
    ) -> None:  # fmt: skip
        super().__init__(sentries, lookout, blocks, known, steps, per_step)
        self._length = steps
        self._first = -1
        self._until = _counter() + MOST_NS
        self._place: tuple[int, int] | None = None
        self._home: Any = None
        """The device and the stream that is counted in: their numbers, and the stream itself."""
        self._moments: dict[int, tuple[int, int]] = {}
        """The step and the micro-batch of each backward."""

    def goes_on(self, step: int) -> bool:
        """``step`` begins: whether it is one more of these."""
        if self._first < 0:
            self._first = step
        room = self._backwards + self._per_step < self._room
        return room and step - self._first < self._length and _counter() < self._until

    def differentiates(self, losses: Sequence[Any]) -> None:
        """A backward of ``losses`` begins, whose time is paid for."""
        start, session, sentries = _counter(), self.session, self._sentries
        place, counted = self._backwards, len(self._took)
        self._lookout.differentiated(session.steps.backwards)
        loss = self._gate(losses)
        if loss is None:
            self._backwards += 1
            self.glances.clear()
            return
        self._moments[place] = (session.step, max(session.steps.backwards - 1, 0))
        self.backward(loss, place)
        took, looked = _counter() - start, len(self._took) > counted
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

    def _gate(self, losses: Sequence[Any]) -> torch.Tensor | None:
        """One number that is finite only if all losses are; None where it cannot be read with what was counted so
        far."""
        if not losses or any(type(loss) is not _Tensor for loss in losses) or hands_off():
            return None
        first = losses[0]
        place = (first.get_device(), stream_of(first.get_device()))
        if self._place is None:
            self._place, self._home = place, self._lane.stream(first)
        if place != self._place:
            return None
        alone = len(losses) == 1 and first.numel() == 1 and first.dtype is torch.float32
        return first if alone and not first.data_ptr() % 16 else gate(losses)

    def relieve(self) -> None:
        """No other step is looked at by this one."""
        try:
            self.dismiss()
            self._lookout.looks += len(self._took)
            place = self._place
            elsewhere = place is not None and stream_of(place[0]) != place[1]
            with self._lane.on(self._home) if elsewhere else nullcontext():
                self._fetch(self._moments)
            told = self._took, self.hooks_ns, self._backwards, len({step for step, _ in self._moments.values()})
            self._sentries.relieved(*told, young=self._young, behind=self._behind)
        except Exception as error:
            self._lookout.failed(error)
