"""The loss of every backward pass: its value, where it was computed, whether it is finite.

Enters: the tensors a backward starts from. Leaves: ``loss`` events; an anomaly when a loss is not finite.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.sites import caller
from brickprof.capture.surroundings import hands_off


class LossProbe(Probe):
    name = "loss"
    every_step = ("backward_begin", "scaling", "zero_grad")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._zeroed = 0
        self._scaled: tuple[weakref.ref[torch.Tensor], torch.Tensor, Any] | None = None

    def zero_grad(self, owner: Any, to_none: bool) -> None:
        self._zeroed += 1

    def scaling(self, scaler: Any, loss: Any) -> None:
        """Remembers what the scaler was given: the loss before it was multiplied."""
        plain, scaled = loss
        if isinstance(plain, torch.Tensor) and isinstance(scaled, torch.Tensor) and not hands_off():
            self._scaled = (weakref.ref(scaled), plain.detach(), scaler)

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        session = self.session
        site = caller() if session.on.facts else ""
        zeroed, self._zeroed = self._zeroed, 0
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
            }
            step = session.step
            session.readback.scalar(value, partial(self._write, fields, step))
        self._scaled = None

    def _unscaled(self, loss: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        known = self._scaled
        if known is None or known[0]() is not loss:
            return loss.detach(), None
        scale = known[2]._scale
        on_host = scale is not None and scale.device.type == "cpu"
        return known[1], float(scale) if on_host else -1.0

    def _without_value(self, loss: torch.Tensor, site: str) -> None:
        fields = {"value": None, "micro": self.session.steps.backwards - 1, "site": site, "shape": list(loss.shape)}
        self.session.fact("loss", fields)

    def _training(self) -> bool | None:
        roots = [root for model in self.session.models[:1] if (root := model.root()) is not None]
        return roots[0].training if roots else None

    def _write(self, fields: dict[str, Any], step: int, value: float) -> None:
        session = self.session
        session.pulse.loss = value
        finite = math.isfinite(value)
        session.fact("loss", {"value": value, **fields}, step=step, always=not finite)
        if not finite:
            session.anomaly("loss", {"value": value}, step=step)
