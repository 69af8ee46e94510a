"""The loss of every backward pass: its value, where it was computed, whether it is finite.

Enters: the tensors a backward starts from. Leaves: ``loss`` events, or ``losses`` of several brisk steps at once; an
anomaly when a loss is not finite. No step's loss is left out, whatever the cadence.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from brickprof.capture.desk import desk
from brickprof.capture.probe import Probe
from brickprof.capture.readback import Several
from brickprof.capture.session import Session
from brickprof.capture.sites import caller
from brickprof.capture.stretch import Passed
from brickprof.capture.surroundings import hands_off, host_hands_off, static_outputs
from brickprof.capture.tensors import on_host
from brickprof.clock import now

_START = 10


_When = tuple[int, int, int]
"""What the loss of a step that nobody looks at is known by: step, micro-batch, time."""


class LossProbe(Probe):
    name = "loss"
    every_step = ("backward_begin", "scaling")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._zeroed = desk.zeroed
        self._nonfinite = False
        self._seen = 0
        self._start = self._usual = 0.0
        self._alarming = math.inf
        self._may_change = session.world_size > 1  # many a script averages its losses over the ranks, in place
        session.keep_loss, session.losses_passed = self._keep, self._passed
        self._later = Several(self._unremarkable, self._arrived_together, self._arrived)
        self._scaled: tuple[weakref.ref[torch.Tensor], torch.Tensor, Any] | None = None

    def scaling(self, scaler: Any, loss: Any) -> None:
        """Remembers what the scaler was given: the loss before it was multiplied."""
        plain, scaled = loss
        if isinstance(plain, torch.Tensor) and isinstance(scaled, torch.Tensor) and not hands_off():
            self._scaled = (weakref.ref(scaled), plain.detach(), scaler)

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        session = self.session
        site = caller() if session.on.facts else ""
        zeroed, self._zeroed = desk.zeroed - self._zeroed, desk.zeroed
        for loss in losses:
            if loss.numel() != 1 or upstream is not None or hands_off():
                self._without_value(loss, site)
                continue
            value, scale = self._unscaled(loss)
            fields = {
                "micro": session.steps.backwards - 1,
                "site": site,
                "scale": scale,
                "dtype": str(loss.dtype).removeprefix("torch."),
                "grad_fn": type(loss.grad_fn).__name__,
                "training": self._training(),
                "zeroed": zeroed,
                "closure": session.in_optimizer,
            }
            step = session.step
            self._nonfinite = False
            write = partial(self._write, fields, step, now(), session.on.facts)
            session.readback.scalar(value, write, self._later)
            if self._nonfinite and on_host(loss):
                session.emit("loss_broken", loss)
        self._scaled = None

    def _passed(self, step: int, steps: Passed, which: range) -> None:
        """The losses of steps that have passed, the first of which is ``step``: only held, also where nothing may be
        asked of a device just now."""
        readback, each = self.session.readback, steps.backwards(which)
        part = slice(each.start, each.stop)
        losses, stamps = steps.losses[part], steps.stamps[part]
        self._zeroed = steps.zeroed[each[-1]]
        numbers = [(step + place // steps.parts, place % steps.parts) for place in range(len(each))]
        kept = [(loss, (*at, stamp), stamp) for loss, at, stamp in zip(losses, numbers, stamps, strict=True)]
        if any(loss._version != steps.version or loss.numel() != 1 for loss in losses):  # some were written over
            kept = [each for each in kept if each[0]._version == steps.version and each[0].numel() == 1]
        readback.keep(kept, self._later, passive=hands_off(), noted=True)
        if len(kept) < len(losses):  # none is held again
            readback.holding = False
            readback.dropped += len(losses) - len(kept)

    def _unremarkable(self, values: list[float]) -> bool:
        return -math.inf < min(values) and max(values) <= self._alarming and math.isfinite(sum(values))

    def _arrived_together(self, when: list[_When], values: list[float]) -> None:
        session = self.session
        session.pulse.loss = values[-1]
        session.journal.losses(
            [(step, micro, value, stamp) for (step, micro, stamp), value in zip(when, values, strict=True)]
        )

    def _keep(self, loss: torch.Tensor) -> bool:
        """The loss of a step that nobody looks at: one unremarkable number, kept and no more.

        Short on purpose: in a step of milliseconds this code is in no cache, and each line of it costs.
        """
        if self._scaled is not None or loss.numel() != 1:
            return False
        session = self.session
        if not on_host(loss):
            if not session.readback.lane.serves(loss) or hands_off():
                return False
            self._zeroed = desk.zeroed
            when = (session.step, session.steps.backwards - 1, now())
            if self._may_change or static_outputs():
                session.readback.scalar(loss, partial(self._arrived, when))
            else:
                session.readback.keep([(loss, when, when[2])], self._later)
            return True
        if host_hands_off():
            return False
        value = loss.item()
        if not -math.inf < value <= self._alarming:  # NaN compares false
            return False
        session.pulse.loss = value
        self._zeroed = desk.zeroed
        session.journal.loss(session.step, session.steps.backwards - 1, value, now())
        return True

    def _arrived(self, when: _When, value: float) -> None:
        """A loss that was kept on a device is here, some steps later."""
        step, micro, stamp = when
        if -math.inf < value <= self._alarming:
            self.session.pulse.loss = value
            self.session.journal.loss(step, micro, value, stamp)
        else:
            self._write({"micro": micro}, step, stamp, False, value)

    def _unscaled(self, loss: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        known = self._scaled
        if known is None or known[0]() is not loss:
            return loss.detach(), None
        scale = known[2]._scale
        return known[1], float(scale) if scale is not None and on_host(scale) else -1.0

    def _without_value(self, loss: torch.Tensor, site: str) -> None:
        fields = {"value": None, "micro": self.session.steps.backwards - 1, "site": site, "shape": list(loss.shape)}
        self.session.fact("loss", fields)

    def _training(self) -> bool | None:
        roots = [root for model in self.session.models[:1] if (root := model.root()) is not None]
        return roots[0].training if roots else None

    def _write(self, fields: dict[str, Any], step: int, stamp: int, told: bool, value: float) -> None:
        session = self.session
        session.pulse.loss = value
        if not math.isfinite(value):
            session.journal.tell_losses()
            session.fact("loss", {"value": value, **fields}, step=step, always=True)
            session.anomaly("loss", {"value": value}, step=step)
            self._nonfinite = True
            return
        if value > self._alarming:
            session.anomaly("loss", {"value": value, "usual": self._usual}, step=step)
        self._learn(value)
        if told:
            session.journal.tell_losses()
            session.fact("loss", {"value": value, **fields}, step=step, wanted=True)
        else:
            session.journal.loss(step, fields["micro"], value, stamp)

    def _learn(self, value: float) -> None:
        """What is alarming: a loss that leaves both its recent size and where it started far behind."""
        self._seen += 1
        if self._seen <= _START:
            self._start = max(self._start, value)
        self._usual += (value - self._usual) / min(self._seen, _START)
        if self._seen >= _START:
            self._alarming = max(3 * self._start, 5 * self._usual, 1e-3)
