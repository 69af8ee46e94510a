"""Saving, loading and restoring: ``torch.save``, ``torch.load`` and every ``load_state_dict``.

Enters: calls. Leaves: ``checkpoint`` and ``restored`` facts, also those from before the training began.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler, optimizer

from brickprof.capture import checkpoints, hub
from brickprof.capture.taps import Replace

_compiling = torch.compiler.is_compiling
_MOST_FACTS = 256
_MOST_RATES = 16
_told = 0
_inside = False
"""A module may restore its parts, a scheduler its members: the outermost call is told."""


def install(replace: Replace) -> None:
    for owner in (torch, torch.serialization):
        replace(owner, "save", _save)
        replace(owner, "load", _load)
    replace(torch.nn.Module, "load_state_dict", _restore(_of_model))
    replace(optimizer.Optimizer, "load_state_dict", _restore(_of_optimizer))
    replace(torch.amp.grad_scaler.GradScaler, "load_state_dict", _restore(_of_rest("scaler")))
    for cls in list(vars(lr_scheduler).values()):
        if inspect.isclass(cls) and issubclass(cls, lr_scheduler.LRScheduler) and "load_state_dict" in cls.__dict__:
            replace(cls, "load_state_dict", _restore(_of_rest("scheduler")))


def _tell(kind: str, fields: Callable[[], dict[str, Any]]) -> None:
    global _told
    if _told < _MOST_FACTS and hub.wanted():
        _told += 1
        with contextlib.suppress(Exception):
            hub.fact(kind, fields())


def _rates() -> list[tuple[int, float]]:
    """The learning rate of every optimizer there is, by its number."""
    book = hub.sessions[0].book if hub.sessions else None
    living = book.optimizers() if book is not None else []
    found = [(book.optimizer(one), max(rates)) for one in living if book is not None and (rates := _plain(one))]
    return found[:_MOST_RATES]


def _plain(stepping: Any) -> list[float]:
    return [float(group["lr"]) for group in stepping.param_groups if isinstance(group.get("lr"), (int, float))]


def _save(original: Any) -> Any:
    def call(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(obj, f, *args, **kwargs)
        _tell("checkpoint", lambda: checkpoints.describe("save", obj, f))
        return result

    return call


def _load(original: Any) -> Any:
    def call(f: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(f, *args, **kwargs)
        _tell("checkpoint", lambda: checkpoints.describe("load", result, f) | {"rates": _rates()})
        return result

    return call


def _restore(describe: Callable[..., dict[str, Any]]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            global _inside
            if _inside or _compiling():
                return original(self, *args, **kwargs)
            _inside = True
            try:
                result = original(self, *args, **kwargs)
            finally:
                _inside = False
            _tell("restored", lambda: describe(self, args, kwargs, result))
            return result

        return call

    return make


def _of_model(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    given = args[0] if args else kwargs.get("state_dict", {})
    strict = args[1] if len(args) > 1 else kwargs.get("strict", True)
    return checkpoints.restored_model(module, given, bool(strict), result)


def _of_optimizer(stepping: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> dict[str, Any]:
    number = hub.sessions[0].book.optimizer(stepping) if hub.sessions else None
    return checkpoints.restored_optimizer(stepping, number)


def _of_rest(what: str) -> Callable[..., dict[str, Any]]:
    def describe(owner: Any, *_rest: Any) -> dict[str, Any]:
        return checkpoints.restored_rest(what, owner)

    return describe
