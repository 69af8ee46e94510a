"""Gradients being cleared: by whom, and whether to None or to zero.

Enters: ``zero_grad`` of optimizers and modules. Leaves: a ``zero_grad`` event the first time somebody clears in
some way; how often it happens stands in every ``loss`` event (``zeroed``: times since the backward before).
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session


class ZeroingProbe(Probe):
    name = "zeroing"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._known: set[tuple[int, bool]] = set()

    def zero_grad(self, owner: Any, to_none: bool) -> None:
        if (id(owner), to_none) in self._known:
            return
        self._known.add((id(owner), to_none))
        if isinstance(owner, torch.nn.Module):
            fields: dict[str, Any] = {"model": type(owner).__name__, "to_none": to_none}
        else:
            fields = {"optimizer": self.session.book.optimizer(owner), "to_none": to_none}
        self.session.fact("zero_grad", fields, always=True)
