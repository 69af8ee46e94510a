"""Train or eval: in which mode each model runs when gradients are computed.

Enters: backward passes. Leaves: ``mode`` events, when a model's mode (or a part's) changed since the last;
``sensitive`` counts the parts in evaluation mode for which it matters.
"""

from __future__ import annotations

from typing import Any

from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.probes.evaluation import sensitive


class ModesProbe(Probe):
    name = "modes"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._last: dict[str, tuple[bool, int]] = {}

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        on = self.session.on
        for model in self.session.models:
            root = model.root()
            if root is None or (self.session.ran and id(root) not in self.session.ran):
                continue  # a model that does not run in this step may be in any mode
            known = self._last.get(model.name)
            # Walking all modules is for sampled steps; the root's own flag is read in every step.
            if known is not None and known[0] == root.training and not on.full:
                continue
            modules = list(root.modules())
            apart = sum(1 for module in modules if module.training != root.training)
            if known != (root.training, apart):
                self._last[model.name] = (root.training, apart)
                fields = {
                    "model": model.name,
                    "training": root.training,
                    "mixed": apart,
                    "sensitive": sum(1 for module in modules if not module.training and sensitive(module)),
                }
                self.session.fact("mode", fields, always=True)
