"""Optimizers: what they own, what they were told, and every update they make.

Enters: optimizers being built and stepping. Leaves: ``optimizer_created`` and ``hyperparameters`` events (the
latter again when a value other than the learning rate changes), and an ``optimizer`` event per update with
the learning rate of every group.
"""

from __future__ import annotations

from typing import Any

import torch

from brickprof.capture.desk import desk
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.tensors import on_host

_MOST_TENSORS = 2000
_CHECK_EVERY = 8
_PER_STEP = frozenset({"params", "lr", "initial_lr", "param_names"})


class OptimizersProbe(Probe):
    name = "optimizers"
    every_step = ("optimizer_built", "rate_leapt")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._told: dict[int, list[dict[str, Any]]] = {}
        self._groups: dict[int, int] = {}
        self._objects: dict[int, list[int]] = {}
        self._built: dict[int, Any] = {}
        """By optimizer: the highest rate that its groups were built with, before any schedule changed it."""

    def optimizer_built(self, optimizer: Any) -> None:
        rates = [_plain(group.get("lr")) for group in optimizer.param_groups]
        self._built[self.session.book.optimizer(optimizer)] = max(
            (rate for rate in rates if isinstance(rate, float)), default=None
        )

    def optimizer_begin(self, optimizer: Any) -> None:
        number = self.session.book.optimizer(optimizer)
        groups = optimizer.param_groups
        size = sum(len(group["params"]) for group in groups)
        if self._groups.get(number) != size:
            self._groups[number] = size
            self._created(optimizer, number)
        if self.session.updates.get(number, 0) % _CHECK_EVERY and not self.session.on.full:
            return
        # Values are replaced, not changed in place: the same objects mean the same hyperparameters.
        objects = [id(value) for group in groups for key, value in group.items() if key not in _PER_STEP]
        if self._objects.get(number) != objects:
            self._objects[number] = objects
            self._hyperparameters(number, groups)

    def _hyperparameters(self, number: int, groups: list[dict[str, Any]]) -> None:
        told = [{key: _plain(value) for key, value in group.items() if key not in _PER_STEP} for group in groups]
        if self._told.get(number) != told:
            self._told[number] = told
            self.session.fact("hyperparameters", {"optimizer": number, "groups": told}, always=True)

    def _created(self, optimizer: Any, number: int) -> None:
        book = self.session.book
        groups = [
            {
                "tensors": [book.entry(p).number for p in group["params"]][:_MOST_TENSORS],
                "trainable": sum(1 for p in group["params"] if p.requires_grad),
                "frozen": [book.entry(p).number for p in group["params"] if not p.requires_grad][:_MOST_TENSORS],
                "lr": _plain(group.get("lr")),
            }
            for group in optimizer.param_groups
        ]
        fields = {"optimizer": number, "cls": type(optimizer).__name__, "groups": groups}
        given = _plain(getattr(optimizer, "defaults", {}).get("lr"))
        fields["built_lr"] = self._built.get(number, given)
        self.session.fact("optimizer_created", fields, always=True)

    def optimizer_end(self, optimizer: Any) -> None:
        if self.session.on.facts:
            self._update(optimizer)

    def rate_leapt(self, optimizer: Any) -> None:
        self._update(optimizer)

    def _update(self, optimizer: Any) -> None:
        number = self.session.book.optimizer(optimizer)
        rates = [_plain(group.get("lr")) for group in optimizer.param_groups]
        if rates and isinstance(rates[0], float):
            self.session.pulse.lr = rates[0]
        fields = {
            "optimizer": number,
            "lr": rates,
            "count": self.session.updates[number],
            "scheduled": desk.scheduled,
        }
        self.session.fact("optimizer", fields, always=True)


def _plain(value: Any) -> Any:
    """A hyperparameter as plain data; a device tensor is left unread, since reading it would wait for it."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and on_host(value) else str(value.device)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return float(value) if type(value) is int else value
    return str(value)
