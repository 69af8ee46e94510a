"""Targets: a fingerprint of what each step is to learn, where no loader of torch hands it out.

Enters: calls of loss functions with gradients on, in steps whose facts are written. Leaves: a ``targets`` event for the
first of each step: a checksum of up to 32 elements. Targets on a device are not read.
"""

from __future__ import annotations

import zlib

import torch

from brickprof.capture import tensors
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.losses import Call

_ELEMENTS = 32


class TargetsProbe(Probe):
    name = "targets"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._step = -1

    def criterion(self, call: Call) -> None:
        session, target = self.session, call.target
        if session.step == self._step or not session.on.facts or session.in_backward or hands_off():
            return
        self._step = session.step
        plain = type(target) in (torch.Tensor, torch.nn.Parameter) and target.layout is torch.strided
        if plain and target.device.type == "cpu" and target.numel() >= 4 and not target.requires_grad:
            session.fact("targets", {"fingerprint": _fingerprint(target)})


def _fingerprint(target: torch.Tensor) -> str:
    some = tensors.strided(target.detach(), _ELEMENTS).contiguous()
    return f"{zlib.crc32(some.view(torch.uint8).numpy().tobytes()):08x}"
