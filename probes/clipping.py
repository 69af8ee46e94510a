"""Clipping: that it ran, on what norm, against what bound, over how many tensors.

Enters: torch's own clipping functions, after they ran. Leaves: ``clip`` events.
"""

from __future__ import annotations

import math
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
        if total is None or hands_off():
            self.session.fact("clip", {**told, "norm": None})
            return
        step = self.session.step

        def arrived(host: torch.Tensor) -> None:
            norm = float(host)
            self.session.pulse.norm = norm
            self.session.fact("clip", {**told, "norm": norm}, step=step, always=not math.isfinite(norm))

        self.session.readback.read(tensors.local(total), arrived)
