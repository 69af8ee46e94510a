"""Targets: a fingerprint of what each step is to learn and from what, where no loader of torch hands it out.

Enters: calls of loss functions with gradients on, in steps whose facts are written; without any, the backward. Leaves:
a ``targets`` event for the first of each step: a checksum of up to 32 elements of the target and of the model's input,
how many samples that has, of what shape, and where it lies.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import numpy as np
import torch

from brickprof.capture import tensors
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.losses import Call

_ELEMENTS = 32


class TargetsProbe(Probe):
    name = "targets"
    every_step = ("alarmed",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._step = -1

    def criterion(self, call: Call) -> None:
        session = self.session
        if session.step == self._step or not session.on.facts or session.in_backward or hands_off():
            return
        self._step = session.step
        if _readable(call.target):
            self._tell(call.target, self._given())

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        """Where the loss is written by hand there is no target to see; what the model was given is."""
        session = self.session
        if session.step == self._step or not session.on.facts or hands_off():
            return
        self._step = session.step
        given = self._given()
        if given is not None:
            self._tell(None, given)

    def alarmed(self) -> None:
        given = self._given()
        if given is not None and self.session.step != self._step and not hands_off():
            self._step = self.session.step
            self._tell(None, given)

    def _given(self) -> torch.Tensor | None:
        fed = self.session.fed
        given = fed() if fed is not None else None
        return given if given is not None and _readable(given) else None

    def _tell(self, target: torch.Tensor | None, given: torch.Tensor | None) -> None:
        """Writes the event when both checksums are known: at once on a host, some steps later on a device."""
        session = self.session
        fields: dict[str, Any] = {"fingerprint": None}
        wanted: list[tuple[str, torch.Tensor]] = [("fingerprint", target)] if target is not None else []
        if given is not None:
            fields |= {"input": None, "rows": given.shape[0], "at": given.untyped_storage().data_ptr()}
            fields["sample"] = list(given.shape[1:])
            wanted.append(("input", given))
        step, left = session.step, len(wanted)

        def arrived(name: str, host: torch.Tensor) -> None:
            nonlocal left
            fields[name], left = _checksum(host), left - 1
            if name == "input" and host.is_floating_point():
                some = host.float().numpy()
                fields.update(absmax=float(np.abs(some).max()), std=float(some.std()))
            if not left:
                session.fact("targets", fields, step=step, wanted=True)

        for name, tensor in wanted:
            session.readback.read(tensors.strided(tensor.detach(), _ELEMENTS), partial(arrived, name))


def _readable(tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return tensor.dim() > 0 and tensor.numel() >= 4 and not tensor.requires_grad


def _checksum(some: torch.Tensor) -> str:
    return f"{zlib.crc32(some.contiguous().view(torch.uint8).numpy().tobytes()):08x}"
