"""A glance at a large tensor: a few of its rows or elements, and what they say.

Enters: inputs, targets and activations of any shape. Leaves: small copies of them on their own device and, once
those are on the host, plain numbers. Nothing is read here before it is on the host.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from brickprof.capture import tensors

Array = np.ndarray[Any, Any]
_ELEMENTS = 16_384
_LEAST_ROWS = 4
_ALONG = 8
_CLOSE = 1e-3


def rows(tensor: torch.Tensor, classes_at: int) -> torch.Tensor:
    """Some rows of ``tensor``, spread over it: 2-D, the dimension ``classes_at`` last."""
    x = tensor.detach()
    if x.dim() < 2:
        return x.reshape(-1, 1)[:_ELEMENTS]
    x = x.movedim(classes_at, -1)
    for place in range(1, x.dim() - 1):
        x = x.narrow(place, 0, x.shape[place]) if x.shape[place] <= _ALONG else _spread(x, place, _ALONG)
    inner = max(math.prod(x.shape[1:]), 1)
    most = max(_ELEMENTS // inner, _LEAST_ROWS)
    return (_spread(x, 0, most) if x.shape[0] > most else x).reshape(-1, x.shape[-1])


def _spread(x: torch.Tensor, place: int, most: int) -> torch.Tensor:
    """``most`` slices of ``x`` at a fixed stride along ``place``."""
    cut = [slice(None)] * x.dim()
    cut[place] = slice(0, None, x.shape[place] // most)
    return x[tuple(cut)].narrow(place, 0, most)


def elements(tensor: torch.Tensor, most: int = 4096) -> torch.Tensor:
    """Up to ``most`` elements at a fixed stride."""
    return tensors.strided(tensor.detach(), most)


def of_rows(x: Array) -> dict[str, Any]:
    """What the rows of an input look like: numbers, and whether they are distributions already."""
    found = of_elements(x)
    if not found["finite"]:
        return found
    found["nonnegative"] = found["min"] >= 0
    found["constant"] = bool(len(x) > 1 and (x == x[0]).all())
    if x.shape[-1] > 1:
        found["sums_to_one"] = found["nonnegative"] and _all_one(x.sum(-1))
        found["log_distribution"] = found["max"] <= _CLOSE and _all_one(np.exp(x).sum(-1))
    return found


def of_elements(x: Array) -> dict[str, Any]:
    finite = np.isfinite(x)
    whole = bool(finite.all())
    kept = (x if whole else x[finite]).astype(np.float64)
    if not kept.size:
        return {"finite": False}
    low, high = float(kept.min()), float(kept.max())
    return {
        "min": low, "max": high, "absmax": max(abs(low), abs(high)),
        "mean": float(kept.mean()), "std": float(kept.std()), "finite": whole,
    }  # fmt: skip


def _all_one(sums: Array) -> bool:
    return bool((np.abs(sums - 1.0) < _CLOSE).all())


def counts(tensor: torch.Tensor, most: int) -> dict[str, Any]:
    """NaN, Inf, mean, spread and size of a host tensor: of the whole where it is small, else of elements of it."""
    picked = elements(tensor, most) if tensor.numel() > most else tensor.detach().reshape(-1)
    x = picked.float().numpy()
    found = of_elements(x)
    nan = int(np.isnan(x).sum())
    return {
        "nan": nan, "inf": int(x.size - np.isfinite(x).sum() - nan), "looked": int(x.size),
        "mean": found.get("mean"), "std": found.get("std"), "absmax": found.get("absmax"),
    }  # fmt: skip
