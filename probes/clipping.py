"""Clipping: that it ran, on what norm, against what bound, over how many tensors.

Enters: torch's own clipping functions, after they ran. Leaves: ``clip`` events.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.probe import Probe
from brickprof.capture.surroundings import hands_off


class ClippingProbe(Probe):
    name = "clipping"

    def clip_end(self, fields: dict[str, Any], total: torch.Tensor | None) -> None:
        bound = fields["max_norm"]
        told = {**fields, "max_norm": float(bound) if isinstance(bound, (int, float)) else None}
        told["late"] = self.session.gradients_used
        if total is None or hands_off():
            self.session.fact("clip", {**told, "norm": None})
            return
        part = tensors.local(total)
        if hasattr(total, "to_local"):
            told["local"] = True  # this rank's part of a sharded norm: the whole would be a collective
        self.session.readback.scalar(part, partial(self._write, told, self.session.step))

    def _write(self, told: dict[str, Any], step: int, norm: float) -> None:
        self.session.pulse.norm = norm
        self.session.fact("clip", {**told, "norm": norm}, step=step, always=not math.isfinite(norm), wanted=True)
