"""Embedding tables that ``from_pretrained`` froze because nobody told it otherwise.

Enters: calls. Leaves: ``by_default``: which weights those are, and whether their rows look like anything but noise.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import Any

import torch

from brickprof.capture.taps import Replace
from brickprof.capture.tensors import on_host

_MOST = 256
_ROWS, _COLUMNS = 1024, 128
_FEWEST_ROWS = 32
_TURNS = 24
_SLACK = 1.25

_frozen: dict[int, tuple[weakref.ref[torch.Tensor], bool]] = {}


def install(replace: Replace) -> None:
    for cls in (torch.nn.Embedding, torch.nn.EmbeddingBag):
        replace(cls, "from_pretrained", _from_pretrained)


def by_default(weight: torch.Tensor) -> bool | None:
    """Whether ``weight`` is noise, where it was frozen by default; None where it was not."""
    known = _frozen.get(id(weight))
    return known[1] if known is not None and known[0]() is weight else None


def _from_pretrained(original: Any) -> Any:
    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, *args, **kwargs)
        if len(args) < 2 and "freeze" not in kwargs and len(_frozen) < _MOST:
            with contextlib.suppress(Exception):
                _frozen[id(made.weight)] = (weakref.ref(made.weight), _noise(made.weight.detach()))
        return made

    return call


def _noise(weight: torch.Tensor) -> bool:
    """Whether no direction is stronger than chance makes it among rows that have nothing in common.

    The strongest direction of independent rows stays below the edge that Marchenko and Pastur gave; vectors that
    somebody trained, and tables of sines, lie far beyond it.
    """
    if not on_host(weight) or weight.shape[0] < _FEWEST_ROWS or weight.dtype not in (torch.float32, torch.float64):
        return False
    rows = weight[:: max(1, weight.shape[0] // _ROWS), :_COLUMNS][:_ROWS].double()
    if float((rows == 0).double().mean()) > 0.5:
        return False  # rows of ones and zeros are a code, not noise
    count, width = rows.shape
    moment = rows.t() @ rows
    direction = torch.ones(width, dtype=torch.float64)
    for _ in range(_TURNS):
        direction = moment @ (direction / direction.norm().clamp_min(1e-300))
    whole = float(moment.diagonal().sum())
    edge = (1 + math.sqrt(width / count)) ** 2
    return whole > 0 and float(direction.norm()) * width / whole <= _SLACK * edge
