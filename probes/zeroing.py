"""Gradients being cleared: by whom, and whether to None or to zero.

Enters: ``zero_grad`` of optimizers and modules. Leaves: ``zero_grad`` events.
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture.probe import Probe


class ZeroingProbe(Probe):
    name = "zeroing"

    def zero_grad(self, owner: Any, to_none: bool) -> None:
        if isinstance(owner, torch.nn.Module):
            fields: dict[str, Any] = {"model": type(owner).__name__, "to_none": to_none}
        else:
            fields = {"optimizer": self.session.book.optimizer(owner), "to_none": to_none}
        self.session.fact("zero_grad", fields)
