"""Targets: a fingerprint of what each step is to learn and from what, where no loader of torch hands it out.

Enters: calls of loss functions with gradients on, in steps whose facts are written; without any, the backward. Leaves:
a ``targets`` event for the first of each step: a checksum of up to 32 elements of the target and of the model's input,
how many samples that has, and where it lies. Tensors on a device are not read.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.losses import Call
from brickprof.capture.tensors import on_host

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
        if _readable(target):
            session.fact("targets", {"fingerprint": _fingerprint(target)} | self._input())

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        """Where the loss is written by hand there is no target to see; what the model was given is."""
        session = self.session
        if session.step == self._step or not session.on.facts or hands_off():
            return
        self._step = session.step
        given = self._input()
        if given:
            session.fact("targets", {"fingerprint": None} | given)

    def _input(self) -> dict[str, Any]:
        fed = self.session.fed
        given = fed() if fed is not None else None
        if given is None or not _readable(given):
            return {}
        return {"input": _fingerprint(given), "rows": given.shape[0], "at": given.untyped_storage().data_ptr()}


def _readable(tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    return on_host(tensor) and tensor.dim() > 0 and tensor.numel() >= 4 and not tensor.requires_grad


def _fingerprint(target: torch.Tensor) -> str:
    some = tensors.strided(target.detach(), _ELEMENTS).contiguous()
    return f"{zlib.crc32(some.view(torch.uint8).numpy().tobytes()):08x}"
