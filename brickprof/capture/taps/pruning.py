"""Pruning: the functions of ``torch.nn.utils.prune``, and what they left of each weight.

Enters: calls. Leaves: a ``pruned`` fact for each weight that got a mask: how many of its elements are zero now.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch.nn.utils import prune

from brickprof.capture import hub
from brickprof.capture.taps import Replace

_FUNCTIONS = ("l1_unstructured", "random_unstructured", "ln_structured", "random_structured", "custom_from_mask")
_MOST_FACTS = 4096
_told = 0


def install(replace: Replace) -> None:
    for name in _FUNCTIONS:
        replace(prune, name, partial(_pruning, name))


def _pruning(how: str, original: Any) -> Any:
    def call(module: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        result = original(module, name, *args, **kwargs)
        with contextlib.suppress(Exception):
            _tell(how, module, name)
        return result

    return call


def _tell(how: str, module: Any, name: str) -> None:
    global _told
    mask, weight = getattr(module, f"{name}_mask", None), getattr(module, f"{name}_orig", None)
    if not isinstance(mask, torch.Tensor) or _told >= _MOST_FACTS or not hub.wanted():
        return
    _told += 1
    entry = hub.sessions[0].book.get(weight) if hub.sessions and isinstance(weight, torch.Tensor) else None
    fields = {"how": how, "tensor": entry.number if entry is not None else None, "numel": mask.numel()}
    kept = (mask != 0).sum(dtype=torch.int64)
    if kept.is_cpu:
        hub.fact("pruned", fields | {"zeros": mask.numel() - int(kept)})
    elif hub.sessions:
        hub.settle()
        session, step, numel = hub.sessions[0], hub.sessions[0].step, mask.numel()
        session.readback.read(
            kept,
            lambda host: session.fact("pruned", fields | {"zeros": numel - int(host)}, step=step, always=True),
        )
