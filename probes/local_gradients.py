"""This rank's own gradients, before they are reduced with the others'.

Enters: parameters of a distributed run, in sampled steps. Leaves: ``grad_local`` samples. A hook behind the
accumulation sees what this rank computed; the optimizer later sees what all ranks agreed on.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.book import Entry
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.clock import now
from brickprof.records import ROLES

_LOCAL = ROLES.index("grad_local")


class LocalGradientsProbe(Probe):
    name = "local_gradients"
    ways = ("full",)
    levels = ("standard", "deep")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._handles: list[Any] = []
        self._found: list[tuple[Entry, torch.Tensor]] = []

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        if self.session.on.full and not self._handles and _several_ranks():
            for parameter in self.session.watched():
                if parameter.is_leaf:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))

    def _accumulated(self, parameter: torch.Tensor) -> None:
        try:
            entry = self.session.book.get(parameter)
            if entry is not None and parameter.grad is not None and not hands_off():
                values = tensors.local(parameter.grad)
                if tensors.watchable(values):
                    # The reducer overwrites the gradient in place: its norm is taken here and now.
                    self._found.append((entry, tensors.l2_norms([values])))
        except Exception as error:
            self.session.failed(self.name, error)

    def backward_end(self, losses: Any, ok: bool) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        found, self._found = self._found, []
        if not found or hands_off():
            return
        session = self.session
        step, micro, stamp = session.step, session.steps.backwards - 1, now()
        entries = [entry for entry, _ in found]
        numels = [tensor.numel() if (tensor := entry.tensor()) is not None else 0 for entry in entries]

        def arrived(host: torch.Tensor) -> None:
            for entry, numel, l2 in zip(entries, numels, host.tolist(), strict=True):
                counted = (0, 0) if math.isfinite(l2) else (None, None)
                session.journal.sample(
                    (stamp, step, micro, entry.brick, entry.number, _LOCAL, numel, *counted, None, l2, None, None,
                     None, None, None, None)
                )  # fmt: skip

        session.readback.read(torch.cat([norm for _, norm in found]), arrived)


def _several_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
