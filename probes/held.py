"""Gradients held over: was there anything left of an earlier step when this step's gradients were added up?

Enters: the beginnings of backward passes and the ends of updates. Leaves: a ``held`` event per update, in steps whose
facts are written.

A few elements of each gradient are looked at, before every backward of the step as long as they are not zero: one that
was never found cleared holds what an earlier step left. A gradient that is None costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.book import owned
from brickprof.capture.desk import desk
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tensors import on_host

_MOST_TENSORS = 64
_ELEMENTS = 64
_MOST_ON_DEVICE = 4


class HeldProbe(Probe):
    name = "held"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._step = -1
        self._looked: dict[int, int] = {}
        """By optimizer: how many tensors were looked at when the step's first backward began."""
        self._held: dict[int, list[torch.Tensor]] = {}
        """By optimizer: the parameters whose gradient was not found cleared yet."""
        self._mask: dict[int, torch.Tensor] = {}
        self._looks = 0
        self._zeroed = desk.zeroed
        self._updates: dict[int, int] = {}
        self._clears: dict[int, int] = {}
        self._within: dict[int, str] = {}

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        session = self.session
        if not session.on.facts or hands_off():
            return
        if session.step != self._step:
            self._begin()
        self._looks += 1
        for number, parameters in self._held.items():
            if parameters:
                self._held[number] = self._still_held(number, parameters)

    def _begin(self) -> None:
        self._step, self._looks = self.session.step, 0
        self._looked, self._held, self._mask = {}, {}, {}
        book = self.session.book
        for optimizer in book.optimizers():
            spread = _spread([p for p in owned(optimizer) if p.requires_grad])
            number = book.optimizer(optimizer)
            # Cleared since its last update: what is there now was added up since, in steps that another one made.
            clear = desk.clears(id(optimizer)) > desk.updated.get(id(optimizer), 0)
            self._looked[number], self._held[number] = len(spread), [] if clear else spread
        if not self._held and not book.optimizers():
            spread = _spread(self.session.watched())
            self._looked[-1], self._held[-1] = len(spread), spread

    def _still_held(self, number: int, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Those of ``parameters`` whose gradient is not zero now."""
        pairs = [(p, tensors.local(p.grad)) for p in parameters if p.grad is not None]
        pairs = [(p, grad) for p, grad in pairs if grad.numel()]
        if not pairs or (not on_host(pairs[0][1]) and self._looks > _MOST_ON_DEVICE):
            return [p for p, _ in pairs]
        if all(on_host(grad) for _, grad in pairs):
            return [p for p, grad in pairs if bool(tensors.strided(grad, _ELEMENTS).any())]
        found = torch.stack([tensors.strided(grad, _ELEMENTS).any() for _, grad in pairs])
        known = self._mask.get(number)
        self._mask[number] = found if known is None or len(known) != len(found) else known & found
        return [p for p, _ in pairs]

    def optimizer_end(self, optimizer: Any) -> None:
        session = self.session
        number = session.book.optimizer(optimizer)
        if self._step == session.step and number in self._held:
            self._write(number, number, self._of(number, optimizer))

    def _of(self, number: int, optimizer: Any) -> dict[str, Any]:
        """What is known of this optimizer alone: how often it cleared its own gradients, and where they are."""
        count = desk.clears(id(optimizer))
        cleared, self._clears[number] = count - self._clears.get(number, 0), count
        if number not in self._within:
            entries = [self.session.book.get(parameter) for parameter in owned(optimizer)]
            self._within[number] = _common([entry.name for entry in entries if entry is not None])
        return {"cleared": cleared, "within": self._within[number]}

    def step_end(self, step: int) -> None:
        if self._step == step and -1 in self._held and not hands_off():
            self._write(-1, None, {})

    def _write(self, number: int, optimizer: int | None, of: dict[str, Any]) -> None:
        session, step = self.session, self._step
        held, mask = self._held.pop(number), self._mask.pop(number, None)
        count = session.updates.get(number, session.steps.updates)
        updates, self._updates[number] = count - self._updates.get(number, 0), count
        zeroed, self._zeroed = desk.zeroed - self._zeroed, desk.zeroed
        fields = {"optimizer": optimizer, "tensors": self._looked[number], "zeroed": zeroed, "updates": updates} | of
        if mask is None or not held:
            session.fact("held", fields | {"held": len(held)}, step=step)
            return
        session.readback.read(
            mask.sum(dtype=torch.int32),
            lambda host: session.fact("held", fields | {"held": int(host)}, step=step, wanted=True),
        )


def _common(names: list[str]) -> str:
    """The module that holds all of them; empty where that is the whole model."""
    paths = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _spread(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    if len(parameters) <= _MOST_TENSORS:
        return parameters
    last = len(parameters) - 1
    return [parameters[round(i * last / (_MOST_TENSORS - 1))] for i in range(_MOST_TENSORS)]
