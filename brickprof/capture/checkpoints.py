"""What is in a checkpoint, without reading a value of it.

Enters: what is saved, or what was loaded. Leaves: plain facts: how many models, tensors and moments, whether optimizer,
scheduler, scaler and random states are there, and the step it was made at.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from brickprof.capture.tensors import on_host

_DEEPEST = 4
_MOST_ENTRIES = 20_000
_MOST_KEYS = 40
_STEP_KEYS = ("global_step", "step", "iteration", "iter", "iter_num", "steps", "epoch", "epochs")


class _Contents:
    def __init__(self) -> None:
        self.models = self.tensors = self.moments = self.entries = 0
        self.optimizer = self.scheduler = self.scaler = self.rng = False
        self.step: float | None = None
        self._step_rank = len(_STEP_KEYS)

    def walk(self, value: Any, key: str, depth: int) -> None:
        self.entries += 1
        if depth > _DEEPEST or self.entries > _MOST_ENTRIES:
            return
        if "rng" in key.lower() or "random_state" in key.lower():
            self.rng = True
        elif isinstance(value, torch.Tensor):
            self.tensors += 1
        elif isinstance(value, torch.nn.Module):
            self.models += 1
            self.tensors += sum(1 for _ in value.parameters()) + sum(1 for _ in value.buffers())
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value.state)
        elif isinstance(value, dict):
            self._mapping(value, depth)
        elif isinstance(value, (list, tuple)) and len(value) <= 64:
            for item in value:
                self.walk(item, key, depth + 1)
        else:
            self._number(value, key)

    def _mapping(self, value: dict[Any, Any], depth: int) -> None:
        if "param_groups" in value and "state" in value:
            self._optimizer(value["state"])
        elif "last_epoch" in value:
            self.scheduler = True
        elif "growth_factor" in value and "scale" in value:
            self.scaler = True
        elif _is_model(value):
            self.models += 1
            self.tensors += len(value)
        else:
            for name, item in value.items():
                self.walk(item, str(name), depth + 1)

    def _optimizer(self, state: Any) -> None:
        self.optimizer = True
        for each in state.values() if isinstance(state, dict) else ():
            if isinstance(each, dict):
                self.moments += sum(1 for item in each.values() if isinstance(item, torch.Tensor) and item.dim())

    def _number(self, value: Any, key: str) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key.lower() in _STEP_KEYS:
            rank = _STEP_KEYS.index(key.lower())
            if rank < self._step_rank:
                self._step_rank, self.step = rank, value


def _is_model(value: dict[Any, Any]) -> bool:
    """A state dictionary: names to tensors, all of them."""
    return bool(value) and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())


def describe(op: str, value: Any, file: Any) -> dict[str, Any]:
    """The fields of a ``checkpoint`` event."""
    contents = _Contents()
    contents.walk(value, "", 0)
    path = os.fspath(file) if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    keys = [str(key) for key in value][:_MOST_KEYS] if isinstance(value, dict) and not _is_model(value) else []
    return {
        "op": op,
        "file": os.path.basename(path) if isinstance(path, str) else None,
        "bytes": _size(path),
        "models": contents.models,
        "tensors": contents.tensors,
        "optimizer": contents.optimizer,
        "moments": contents.moments,
        "scheduler": contents.scheduler,
        "scaler": contents.scaler,
        "rng": contents.rng,
        "step": contents.step,
        "keys": keys,
    }


def _size(path: Any) -> int | None:
    try:
        return os.path.getsize(path) if isinstance(path, str) else None
    except OSError:
        return None


def restored_model(module: torch.nn.Module, given: Any, strict: bool, result: Any) -> dict[str, Any]:
    missing, unexpected = getattr(result, "missing_keys", []), getattr(result, "unexpected_keys", [])
    return {
        "what": "model",
        "cls": type(module).__name__,
        "tensors": len(given),
        "expected": _persistent(module),
        "missing": len(missing),
        "unexpected": len(unexpected),
        "names": [*missing[:8], *unexpected[:8]],
        "strict": strict,
    }


def _persistent(module: torch.nn.Module) -> int:
    """How many tensors the module would save; asking it could run the user's hooks, or a collective."""
    count = 0
    for part in module.modules():
        count += sum(1 for parameter in part._parameters.values() if parameter is not None)
        kept = (b for name, b in part._buffers.items() if name not in part._non_persistent_buffers_set)
        count += sum(1 for buffer in kept if buffer is not None)
    return count


def restored_optimizer(optimizer: Any, number: int | None) -> dict[str, Any]:
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    steps = [state["step"] for state in states if "step" in state]
    return {
        "what": "optimizer",
        "cls": type(optimizer).__name__,
        "optimizer": number,
        "tensors": len(states),
        "expected": sum(len(group["params"]) for group in optimizer.param_groups),
        "moments": sum(1 for s in states for item in s.values() if isinstance(item, torch.Tensor) and item.dim()),
        "count": _number_of(steps[0]) if steps else None,
        "lr": [_number_of(group.get("lr")) for group in optimizer.param_groups],
    }


def restored_rest(what: str, owner: Any) -> dict[str, Any]:
    """Of a scheduler or a scaler."""
    rates = getattr(owner, "_last_lr", None)
    fields = {"what": what, "cls": type(owner).__name__, "count": _number_of(getattr(owner, "last_epoch", None))}
    return fields | {"lr": [_number_of(rate) for rate in rates] if isinstance(rates, list) else None}


def _number_of(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and on_host(value) else None
    return float(value) if isinstance(value, (int, float)) else None
