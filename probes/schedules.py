"""Learning-rate schedules: which there are, and how often they are stepped.

Enters: ``step`` of torch's schedulers. Leaves: a ``schedule`` event the first time one is stepped (building one steps
it once; with its own settings: horizon, warm-up, the rates it starts from), in sampled steps, and each time one that
waits for progress is told how well things go; a ``schedules`` event at the end. How often any was stepped so far stands
in every ``optimizer`` event (``scheduled``), with the rates.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import torch

from brickprof.capture.desk import desk
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tensors import on_host

_MOST = 64
_MOST_MEASURES = 500


class SchedulesProbe(Probe):
    name = "schedules"
    ways = ("facts", "full")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._known: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._measures = 0

    def scheduled(self, scheduler: Any) -> None:
        known = self._known.get(id(scheduler))
        if known is not None and known[1]() is scheduler:
            if self.session.on.full:
                self._tell(scheduler, known[0])
            return
        self._known[id(scheduler)] = number, _ = len(self._known), weakref.ref(scheduler)
        self._tell(scheduler, number, settings=settings(scheduler))

    def plateau_judged(self, scheduler: Any, measure: Any) -> None:
        """What a schedule that waits for progress goes by; one on a device was read by the schedule, not by us."""
        if isinstance(measure, torch.Tensor):
            measure = measure.item() if measure.numel() == 1 and on_host(measure) and not hands_off() else None
        if not _is_number(measure) or self._measures >= _MOST_MEASURES:
            return
        if id(scheduler) not in self._known:
            self.scheduled(scheduler)
        self._measures += 1
        told = {"mode": getattr(scheduler, "mode", ""), "bad": scheduler.num_bad_epochs}
        self._tell(scheduler, self._known[id(scheduler)][0], measure=float(measure), **told)

    def close(self) -> None:
        """The objects may be gone by now; how often all of them were stepped is known."""
        if self._known:
            fields = {"schedules": len(self._known), "scheduled": desk.scheduled}
            self.session.fact("schedules", fields, always=True)

    def _tell(self, scheduler: Any, number: int, **more: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None:
            return
        rates = [group.get("lr") for group in optimizer.param_groups]
        fields = {
            "schedule": number,
            "cls": type(scheduler).__name__,
            "optimizer": self.session.book.optimizer(optimizer),
            "lr": [float(rate) if _on_host(rate) else None for rate in rates],
            "count": getattr(scheduler, "_step_count", None),
        }
        self.session.fact("schedule", fields | more, always=True)


def settings(scheduler: Any) -> dict[str, Any]:
    """The numbers a schedule was built from: its own, and those that its functions of the step were given."""
    found = {
        name: [float(item) for item in value] if isinstance(value, list) else value
        for name, value in vars(scheduler).items()
        if not name.startswith("_") and (_is_number(value) or (isinstance(value, list) and all(map(_is_number, value))))
    }
    for function in getattr(scheduler, "lr_lambdas", None) or ():
        found |= {f"lambda.{name}": value for name, value in _given(function).items()}
    return found


def _given(function: Any) -> dict[str, Any]:
    """Numbers that a function closes over, was bound to, or reads from its module."""
    if isinstance(function, functools.partial):
        return _given(function.func) | {name: value for name, value in function.keywords.items() if _is_number(value)}
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    module = getattr(function, "__globals__", {})
    read = {name: module[name] for name in code.co_names if name in module}
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
        try:
            read[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return {name: value for key, held in read.items() for name, value in _numbers(key, held)}


def _numbers(key: str, held: Any) -> list[tuple[str, Any]]:
    """A number under its name, or the numbers in a mapping or a plain object of settings."""
    if _is_number(held):
        return [(key, held)]
    inside = held if isinstance(held, dict) else getattr(held, "__dict__", None)
    if not isinstance(inside, dict) or isinstance(held, (type, types.ModuleType)) or callable(held):
        return []
    return [(str(name), value) for name, value in list(inside.items())[:_MOST] if _is_number(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _on_host(rate: Any) -> bool:
    return not isinstance(rate, torch.Tensor) or on_host(rate)
