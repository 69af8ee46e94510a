"""The loss scale under mixed precision: what it is, when it backs off, which steps it skips.

Enters: ``GradScaler``'s step and update. Leaves: ``scaler`` events; a skipped update says so.
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture.probe import Probe
from brickprof.capture.surroundings import hands_off


class ScalerProbe(Probe):
    name = "scaler"

    def scaler_step(self, scaler: Any, optimizer: Any) -> None:
        session = self.session
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        number, step, told_now = session.book.optimizer(optimizer), session.step, session.on.facts
        if not found or scaler._scale is None or hands_off():
            return
        home = scaler._scale.device
        flags = torch.stack([flag.detach().to(home, torch.float32) for flag in found.values()])
        told = torch.cat([flags.sum().reshape(1), scaler._scale.detach().reshape(1).float()])

        def arrived(host: torch.Tensor) -> None:
            infs, scale = host.tolist()
            skipped = infs > 0
            fields = {"op": "step", "optimizer": number, "scale": scale, "found_inf": infs, "skipped": skipped}
            session.fact("scaler", fields, step=step, always=skipped, wanted=told_now)

        session.readback.read(told, arrived)

    def scaler_update(self, scaler: Any) -> None:
        session = self.session
        if scaler._scale is None or not session.on.facts or hands_off():
            return
        step = session.step

        def arrived(host: torch.Tensor) -> None:
            session.fact("scaler", {"op": "update", "scale": float(host)}, step=step, wanted=True)

        session.readback.read(scaler._scale.detach().clone(), arrived)
