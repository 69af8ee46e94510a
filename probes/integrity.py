"""Integrity: weights that change while nobody updates them, and updates from gradients that no backward made.

Enters: the moments around backward passes and updates, in sampled steps. Leaves: an ``integrity`` event: trainable
tensors, and states of optimizers, whose bits changed during a backward in which no optimizer ran, tensors inside a
larger buffer that changed between the beginning of the step and its backward, and two numbers that bound each other: the norm of the gradients that
the update used is at most the sum of the norms that the backwards of the step left.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.book import owned
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off

_ELEMENTS = 256
_MOST_TENSORS = 256
_MOST_STATES = 64
_MOST_LOOKS = 16
_counter = time.perf_counter_ns
Mark = tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]
"""A parameter, itself or its optimizer's memory of it, where that lay, and some of its elements."""


class IntegrityProbe(Probe):
    name = "integrity"
    ways = ("full",)
    levels = ("standard", "deep")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._looks = 0
        self._reset()

    def _reset(self) -> None:
        self._step = self.session.step
        self._before: list[Mark] = []
        self._changed: list[tuple[torch.Tensor, torch.Tensor, str]] = []
        self._made: list[torch.Tensor] = []
        self._told = False
        self._updates = 0

    def step_begin(self, step: int) -> None:
        if self._looking():
            self._reset()
            self._before = _marks([(p, p) for p in self._watched() if _inside_another(p)])

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        if not self._looking():
            return
        start = _counter()
        if self._step != self.session.step:
            self._reset()
        self._compare("forward")
        first = self.session.steps.backwards <= 1
        self._before = _marks([*((p, p) for p in self._watched()), *self._states()]) if first else []
        self._updates = sum(self.session.updates.values())
        self.session.spend("full", _counter() - start)

    def backward_end(self, losses: Any, ok: bool) -> None:
        if not self._looking() or self._step != self.session.step or not ok:
            return
        start = _counter()
        if not self.session.in_optimizer and self._updates == sum(self.session.updates.values()):
            self._compare("backward")  # an optimizer may run inside a backward, on each gradient as it comes
        self._before = []
        norm = _norm(self._watched())
        if norm is not None:
            self._made.append(norm)
        self.session.spend("full", _counter() - start)

    def optimizer_begin(self, optimizer: Any) -> None:
        if not self._looking() or self._told or self._step != self.session.step:
            return
        start = _counter()
        self._told = True
        self._looks += 1
        self._tell(_norm(owned(optimizer)))
        self.session.spend("full", _counter() - start)

    def _looking(self) -> bool:
        session = self.session
        return session.on.full and not session.on.deep and self._looks < _MOST_LOOKS and not hands_off()

    def _watched(self) -> list[torch.Tensor]:
        return [p for p in self.session.watched() if p.is_leaf and tensors.watchable(tensors.local(p))][:_MOST_TENSORS]

    def _states(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = []
        for optimizer in self.session.book.optimizers():
            for parameter in owned(optimizer)[:_MOST_STATES]:
                state = optimizer.state.get(parameter, {})
                kept = [each for each in state.values() if isinstance(each, torch.Tensor) and each.numel() > 1]
                found += [(parameter, each) for each in kept if tensors.watchable(tensors.local(each))]
        return found

    def _compare(self, phase: str) -> None:
        for parameter, kept, at, before in self._before:
            now = tensors.local(kept).detach()
            if now.data_ptr() == at and now.numel():
                after = tensors.strided(now, _ELEMENTS)
                other = (after != before) & ~(after.isnan() & before.isnan())
                self._changed.append((parameter, other.any(), phase if kept is parameter else "state"))

    def _tell(self, used: torch.Tensor | None) -> None:
        session, step, changed = self.session, self.session.step, self._changed
        made, count = self._made, len(self._made)
        numbers = [torch.stack(made).sum(), used] if made and used is not None else []
        parts = [torch.stack(numbers)] if numbers else []
        parts += [torch.stack([flag for _, flag, _ in changed]).float()] if changed else []
        if not parts:
            return
        entries = [(session.book.entry(parameter).number, phase) for parameter, _, phase in changed]
        self._changed, self._made = [], []

        def arrived(host: torch.Tensor) -> None:
            values = host.tolist()
            bounds, flags = values[: len(numbers)], values[len(numbers) :]
            fields: dict[str, Any] = {"looked": len(entries), "backwards": count, "forward": [], "backward": [], "state": []}
            for (number, phase), flag in zip(entries, flags, strict=True):
                if flag:
                    fields[phase].append(number)
            fields |= {"made": bounds[0], "used": bounds[1]} if bounds else {}
            session.fact("integrity", fields, step=step, wanted=True)

        session.readback.read(torch.cat([part.reshape(-1).float() for part in parts]), arrived)


def _inside_another(parameter: torch.Tensor) -> bool:
    """Whether ``parameter`` is a piece of a larger buffer."""
    values = tensors.local(parameter)
    return values.untyped_storage().nbytes() > values.numel() * values.element_size()


def _marks(kept: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Mark]:
    found = []
    for parameter, each in kept:
        values = tensors.local(each).detach()
        if values.numel() and values.layout is torch.strided:
            found.append((parameter, each, values.data_ptr(), tensors.strided(values, _ELEMENTS).clone()))
    return found


def _norm(parameters: list[torch.Tensor]) -> torch.Tensor | None:
    grads = [tensors.local(p.grad) for p in parameters if p.grad is not None]
    grads = [grad.detach() for grad in grads if tensors.watchable(grad) and grad.numel()]
    if not grads or len({grad.device for grad in grads}) > 1:
        return None
    norms = torch._foreach_norm(grads, 2, dtype=torch.float32)
    return torch.stack(norms).norm()
