"""What happened to the gradients between backward and step, whoever did it.

Enters: the ends of backward passes and the beginnings of updates, in sampled steps. Leaves: an ``applied`` event: the
size of the gradients that the optimizer is given, over that of those that backward left. Clipping, scaling by hand,
hooks, averaging: all show, also in blocks that were left out. Sizes come from up to 1,024 elements of each tensor; a
loss scale is taken out. An optimizer with hooks of the script's own, which run behind ours, is not followed: they may
be what clips.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from brickprof.capture import tensors
from brickprof.capture.book import Entry, owned
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off

_MOST_BLOCKS = 64
_SAME = 1e-3
_MOST_BACKWARDS = 8
Looked = tuple[list[Entry], list[int], torch.Tensor]


class AppliedProbe(Probe):
    name = "applied"
    ways = ("full",)
    levels = ("standard", "deep")
    every_step = ("scaling", "unscale_begin")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._before: dict[int, Looked] = {}
        self._scale: torch.Tensor | None = None
        self._backwards = 0

    def step_begin(self, step: int) -> None:
        self._before.clear()
        self._backwards = 0

    def scaling(self, scaler: Any, loss: Any) -> None:
        self._scale = scaler._scale

    def unscale_begin(self, scaler: Any, optimizer: Any) -> None:
        if self.session.on.full and self._scale is not None and not hands_off():
            self._scale = self._scale.detach().clone()  # the scaler writes into its own

    def backward_end(self, losses: Any, ok: bool) -> None:
        """The last backward before the update counts: each look replaces the one before."""
        session = self.session
        self._backwards += 1
        if not session.on.full or not ok or session.in_optimizer or hands_off():
            return
        if self._backwards > _MOST_BACKWARDS:
            self._before.clear()  # a long accumulation: not followed
            return
        for optimizer in session.book.optimizers():
            looked = self._look(optimizer)
            if looked is not None:
                self._before[id(optimizer)] = looked

    def _look(self, optimizer: Any) -> Looked | None:
        entries, values = [], []
        for parameter in owned(optimizer):
            if parameter.grad is not None:
                grad = tensors.local(parameter.grad)
                if tensors.watchable(grad):
                    entries.append(self.session.book.entry(parameter))
                    values.append(grad)
        return (entries, [value.numel() for value in values], tensors.samples(values)) if values else None

    def optimizer_begin(self, optimizer: Any) -> None:
        session = self.session
        before, scale = self._before.pop(id(optimizer), None), self._scale
        if before is None or not session.on.full or hands_off():
            return
        if getattr(optimizer, "_optimizer_step_pre_hooks", None):
            return
        after = self._look(optimizer)
        if after is None or [entry.number for entry in after[0]] != [entry.number for entry in before[0]]:
            return
        if after[1] != before[1]:
            return
        parts = [before[2], after[2]]
        if scale is not None:
            parts.append(scale.detach().reshape(1).to(after[2].device, torch.float32))
        number, step = session.book.optimizer(optimizer), session.step
        session.readback.read(torch.cat(parts), lambda host: self._arrived(number, step, before[0], before[1], host))

    def _arrived(self, number: int, step: int, entries: list[Entry], numels: list[int], host: torch.Tensor) -> None:
        lengths = [min(tensors.SAMPLE, numel) for numel in numels]
        total = sum(lengths)
        scale = float(host[2 * total]) if len(host) > 2 * total else 1.0
        first = tensors.segment_norms(host[:total].numpy(), lengths)
        second = tensors.segment_norms(host[total : 2 * total].numpy(), lengths)
        sizes = [
            (entry.brick, numel * (a / scale) ** 2, numel * b**2)
            for entry, numel, a, b in zip(entries, numels, first, second, strict=True)
        ]
        before, after = (math.sqrt(sum(size[place] for size in sizes)) for place in (1, 2))
        fields = {
            "optimizer": number,
            "coefficient": _ratio(before, after),
            "before": before,
            "after": after,
            "tensors": len(entries),
            "scale": None if scale == 1.0 else scale,
            "blocks": _blocks(sizes),
        }
        self.session.fact("applied", fields, step=step, wanted=True)


def _ratio(before: float, after: float) -> float | None:
    return after / before if math.isfinite(after) and math.isfinite(before) and before else None


def _blocks(sizes: list[tuple[int, float, float]]) -> list[list[float | None]]:
    """The coefficient of every block, where they are not all the same."""
    sums: dict[int, list[float]] = {}
    for brick, before, after in sizes:
        known = sums.setdefault(brick, [0.0, 0.0])
        known[0] += before
        known[1] += after
    ratios = {brick: _ratio(math.sqrt(before), math.sqrt(after)) for brick, (before, after) in sums.items()}
    known_ratios = [ratio for ratio in ratios.values() if ratio is not None]
    if not known_ratios or max(known_ratios) - min(known_ratios) <= _SAME * max(known_ratios):
        return []
    return [[brick, ratio] for brick, ratio in list(ratios.items())[:_MOST_BLOCKS]]
