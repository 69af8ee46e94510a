"""Integrity: weights that change while nobody updates them, and updates from gradients that no backward made.

Enters: the moments around backward passes and updates, in sampled steps. Leaves: an ``integrity`` event: trainable
tensors, and states of optimizers, that changed during a backward in which no optimizer ran; of both, those inside a
larger buffer that changed between the beginning of the step and its backward; and two numbers that bound each other:
the norm of the gradients that the update used is at most the sum of the norms that the backwards of the step left.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch

from brickprof.capture import tensors
from brickprof.capture.book import owned
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off

_ELEMENTS = 128
_MOST_TENSORS = 256
_MOST_STATES = 64
_MOST_LOOKS = 6
_counter = time.perf_counter_ns
Kept = tuple[torch.Tensor, torch.Tensor]
"""A parameter, and what is kept of it: itself, or a part of its optimizer's memory."""


class _Marks(NamedTuple):
    """Some elements of each tensor, one behind the other, and where the tensors lay."""

    kept: list[Kept]
    places: list[int]
    values: torch.Tensor


class _Pair(NamedTuple):
    before: _Marks
    after: _Marks
    phase: str


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
        self._before: _Marks | None = None
        self._pairs: list[_Pair] = []
        self._made: list[torch.Tensor] = []
        self._told = False
        self._updates = 0

    # -- the moments

    def step_begin(self, step: int) -> None:
        if self._looking():
            self._reset()
            kept = [*((p, p) for p in self._watched()), *self._states()]
            self._before = _marks([each for each in kept if _inside_another(each[1])])

    def backward_begin(self, losses: Any, upstream: Any) -> None:
        if not self._looking():
            return
        start = _counter()
        if self._step != self.session.step:
            self._reset()
        self._compare("forward")
        if self.session.steps.backwards <= 1:
            self._before = _marks([*((p, p) for p in self._watched()), *self._states()])
        self._updates = sum(self.session.updates.values())
        self.session.spend("full", _counter() - start)

    def backward_end(self, losses: Any, ok: bool) -> None:
        if not self._looking() or self._step != self.session.step or not ok:
            return
        start = _counter()
        if not self.session.in_optimizer and self._updates == sum(self.session.updates.values()):
            self._compare("backward")  # an optimizer may run inside a backward, on each gradient as it comes
        self._before = None
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

    def step_end(self, step: int) -> None:
        self._reset()  # nothing of the model is held beyond its step

    def _looking(self) -> bool:
        session = self.session
        whole = session.on.full and not session.on.deep and session.entered_late != session.step
        return whole and self._looks < _MOST_LOOKS and not hands_off()

    # -- what is looked at

    def _watched(self) -> list[torch.Tensor]:
        return [p for p in self.session.watched() if p.is_leaf][:_MOST_TENSORS]

    def _states(self) -> list[Kept]:
        found: list[Kept] = []
        for optimizer in self.session.book.optimizers():
            for parameter in owned(optimizer)[:_MOST_STATES]:
                kept = optimizer.state.get(parameter, {}).values()
                found += [(parameter, each) for each in kept if isinstance(each, torch.Tensor) and each.numel() > 1]
        return found

    def _compare(self, phase: str) -> None:
        before, self._before = self._before, None
        after = _marks(before.kept) if before is not None else None
        if before is not None and after is not None and len(after.kept) == len(before.kept):
            self._pairs.append(_Pair(before, after, phase))

    # -- what is told

    def _tell(self, used: torch.Tensor | None) -> None:
        session, step, pairs = self.session, self.session.step, self._pairs
        count = len(self._made)
        bounds = [torch.stack(self._made).sum(), used] if self._made and used is not None else []
        self._pairs, self._made = [], []
        parts = [*(bound.reshape(1) for bound in bounds), *(m.values for p in pairs for m in (p.before, p.after))]
        if not parts or len({part.device for part in parts}) > 1:
            return
        number = session.book.entry
        about = [[(number(p).number, kept is p, kept.numel()) for p, kept in pair.after.kept] for pair in pairs]
        still = [[a == b for a, b in zip(p.before.places, p.after.places, strict=True)] for p in pairs]
        phases = [pair.phase for pair in pairs]

        def arrived(host: torch.Tensor) -> None:
            values = host.numpy()
            fields: dict[str, Any] = {"looked": sum(map(len, about)), "backwards": count}
            fields |= {"forward": [], "backward": [], "state": []}
            fields |= {"made": float(values[0]), "used": float(values[1])} if bounds else {}
            at = len(bounds)
            for rows, places, phase in zip(about, still, phases, strict=True):
                length = sum(min(_ELEMENTS, numel) for _, _, numel in rows)
                other = _other(values[at : at + length], values[at + length : at + 2 * length])
                at += 2 * length
                start = 0
                for (number, itself, numel), in_place in zip(rows, places, strict=True):
                    end = start + min(_ELEMENTS, numel)
                    if in_place and other[start:end].any():
                        fields[phase if itself else "state"].append(number)
                    start = end
            session.fact("integrity", fields, step=step, wanted=True)

        session.readback.read(torch.cat(parts), arrived)


def _other(before: Any, after: Any) -> Any:
    """Where the two differ; NaN is like NaN."""
    return (before != after) & ~(np.isnan(before) & np.isnan(after))


def _inside_another(parameter: torch.Tensor) -> bool:
    """Whether ``parameter`` is a piece of a larger buffer."""
    values = tensors.local(parameter)
    return values.untyped_storage().nbytes() > values.numel() * values.element_size()


def _marks(kept: list[Kept]) -> _Marks | None:
    """Of all that lies on one device, in one copy."""
    pairs = [(each, tensors.local(each[1]).detach()) for each in kept]
    pairs = [(each, values) for each, values in pairs if tensors.watchable(values) and values.layout is torch.strided]
    pairs = [(each, values) for each, values in pairs if values.device == pairs[0][1].device]
    if not pairs:
        return None
    parts = [tensors.strided(values, _ELEMENTS).float() for _, values in pairs]
    return _Marks([each for each, _ in pairs], [values.data_ptr() for _, values in pairs], torch.cat(parts))


def _norm(parameters: list[torch.Tensor]) -> torch.Tensor | None:
    grads = [tensors.local(p.grad).detach() for p in parameters if p.grad is not None]
    grads = [grad for grad in grads if grad.layout is torch.strided and tensors.watchable(grad)]
    if not grads or len({grad.device for grad in grads}) > 1:
        return None
    wide = torch.float64 if any(grad.dtype is torch.float64 for grad in grads) else torch.float32
    norms: list[torch.Tensor] = list(torch._foreach_norm(grads, 2, dtype=wide))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
