"""Who updates what: gradients that nobody uses, and updates of what nobody trains.

Enters: the moment before an update, in sampled steps. Leaves: an ``ownership`` event: trainable tensors that have a
gradient and no optimizer (``unowned``), which of these moved all the same since the last look (``moved``), owned
tensors without a gradient (``idle``) or outside every living model (``outside``), owned ones that want no gradient
(``frozen``), and modules that carry an attribute ``requires_grad``, or parameters one that is spelt nearly so, which
freezes and frees nothing (``wished``). At the end, an ``unused`` event where optimizers were built and never stepped.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from brickprof.capture.book import owned
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.taps import tables
from brickprof.capture.tensors import on_host

_MOST = 500
_MISSPELT = re.compile(r"(require[sd]?|needs?)_?grad(s|ients?)?")
_CLOSE_LOOKS = 64
_EVERY_LOOK = 8


class OwnershipProbe(Probe):
    name = "ownership"
    ways = ("full",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._looked = -1
        self._looks = 0
        self._marks: dict[int, tuple[int, float | None]] = {}
        self._built = 0

    def optimizer_built(self, optimizer: Any) -> None:
        self._built += 1

    def close(self) -> None:
        if self._built and not self.session.updates:
            self.session.fact("unused", {"optimizers": self._built}, always=True)

    def optimizer_begin(self, optimizer: Any) -> None:
        session = self.session
        if not session.on.full or self._looked == session.step:
            return
        self._looked = session.step
        self._looks += 1
        if self._looks > _CLOSE_LOOKS and self._looks % _EVERY_LOOK:
            return
        session.fact("ownership", self._fields(), always=True)

    def _fields(self) -> dict[str, Any]:
        session = self.session
        ours = [p for each in session.book.optimizers() for p in owned(each)]
        known = {id(p) for p in ours}
        living = {id(p) for model in session.models if (root := model.root()) is not None for p in root.parameters()}
        alone = [p for p in session.watched() if id(p) not in known and p.is_leaf and p.grad is not None]
        return {
            "owned": len(known),
            "unowned": self._numbers(alone),
            "moved": self._numbers([p for p in alone[:_MOST] if self._moved(p)]),
            "idle": self._numbers([p for p in ours if p.grad is None and p.requires_grad]),
            "outside": self._numbers([p for p in ours if id(p) not in living]),
            "frozen": self._numbers([p for p in ours if not p.requires_grad]),
            "wished": self._wished(),
            "noise": self._numbers([p for p in ours if not p.requires_grad and tables.by_default(p)]),
        }

    def _numbers(self, parameters: list[torch.Tensor]) -> list[int]:
        return [self.session.book.entry(parameter).number for parameter in parameters[:_MOST]]

    def _moved(self, parameter: torch.Tensor) -> bool:
        """Whether somebody wrote into ``parameter`` since the last look: by its version, on a host by a value too."""
        host = on_host(parameter) and parameter.numel() > 0
        mark = parameter._version, float(parameter.detach().reshape(-1)[0]) if host else None
        before = self._marks.get(id(parameter))
        self._marks[id(parameter)] = mark
        return before is not None and before != mark

    def _wished(self) -> list[list[Any]]:
        found = []
        for model in self.session.models:
            root = model.root()
            for path, module in root.named_modules() if root is not None else ():
                if "requires_grad" in module.__dict__:
                    found.append([path, bool(module.__dict__["requires_grad"]), "requires_grad"])
            for name, parameter in root.named_parameters() if root is not None else ():
                attribute = next(filter(_MISSPELT.fullmatch, parameter.__dict__), None)
                if attribute is not None:
                    found.append([name, bool(parameter.__dict__[attribute]), attribute])
        return found[:_MOST]
