"""Operations that make values which are not finite of such as are: what they did, from what autograd saved of them.

Enters: a node of the graph and a ``Look`` at each tensor that it saved. Leaves: the kind of the mistake, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from brickprof.capture import graph, tensors

MOST_ELEMENTS = 1 << 20
Look = dict[str, Any]


def look(name: str, value: torch.Tensor) -> Look:
    """What is in a tensor on the host."""
    flat = some(value)
    nan, inf = int(torch.isnan(flat).sum()), int(torch.isinf(flat).sum())
    finite = flat if not (nan or inf) else flat[torch.isfinite(flat)]
    low, high = (float(part) for part in torch.aminmax(finite)) if finite.numel() else (None, None)
    return {
        "name": name, "min": low, "max": high, "zeros": int((flat == 0).sum()), "nan": nan, "inf": inf,
        "above": int((flat == math.inf).sum()) if inf else 0, "numel": value.numel(), "finite": not (nan or inf),
        "dtype": str(value.dtype).removeprefix("torch."),
    }  # fmt: skip


def some(value: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor in a row, or enough of them."""
    flat = value.detach()
    return tensors.strided(flat, MOST_ELEMENTS) if flat.numel() > MOST_ELEMENTS else flat.reshape(-1)


def is_result(name: str) -> bool:
    """Whether a saved tensor is what the operation gave, not what it was given."""
    return name.startswith(("result", "output"))


def masks(node: graph.Node, given: Look) -> bool:
    """Whether infinities are what ``given`` is for: below everything, they take places out of a sum over powers."""
    return not given["nan"] and (given["name"] in _MASKS or (node.op in _OVER_MASKED and given["above"] == 0))


def mistake(node: graph.Node, inputs: list[Look]) -> str | None:
    """What ``node`` did to finite ``inputs``."""
    return _RULES.get(node.op, _none)(node.function, inputs)


def mishap(node: graph.Node, results: list[Look]) -> str:
    """The same by ``results`` that are not finite, which few operations save: if all that it was given was finite."""
    return _FROM_RESULT.get(node.op) or ("overflow" if all(not each["nan"] for each in results) else "unknown")


def needs_infinity(kind: str) -> bool:
    """Whether something must have put minus infinity there, on purpose."""
    return kind == "empty-softmax"


def _named(inputs: Iterable[Look], name: str) -> Look | None:
    return next((each for each in inputs if each["name"] == name), None)


def _none(_function: Any, _inputs: list[Look]) -> str | None:
    return None


def _log(_function: Any, inputs: list[Look]) -> str | None:
    given = _named(inputs, "self")
    if given is None or given["min"] is None or given["min"] > 0:
        return None
    return "log-of-zero" if given["min"] == 0 else "log-of-negative"


def _log1p(_function: Any, inputs: list[Look]) -> str | None:
    given = _named(inputs, "self")
    if given is None or given["min"] is None or given["min"] > -1:
        return None
    return "log-of-zero" if given["min"] == -1 else "log-of-negative"


def _division(_function: Any, inputs: list[Look]) -> str | None:
    given = _named(inputs, "other")
    return "division-by-zero" if given is not None and given["zeros"] else None


def _power(function: Any, inputs: list[Look]) -> str | None:
    given, exponent = _named(inputs, "self"), graph.setting(function, "exponent")
    if given is None or not isinstance(exponent, (int, float)):
        return None
    if exponent < 0 and given["zeros"]:
        return "division-by-zero"
    if exponent != int(exponent) and given["min"] is not None and given["min"] < 0:
        return "root-of-negative"
    return None


def _mean(function: Any, inputs: list[Look]) -> str | None:
    """Of the losses of all targets but those that are ignored, by their weights."""
    weight = _named(inputs, "total_weight")
    is_mean = graph.setting(function, "reduction") == 1
    return "empty-mean" if is_mean and weight is not None and weight["zeros"] else None


_RULES: dict[str, Callable[[Any, list[Look]], str | None]] = {
    "Log": _log, "Log2": _log, "Log10": _log, "Log1P": _log1p, "Log1p": _log1p, "Div": _division, "Pow": _power,
    "NllLoss": _mean, "NllLoss2D": _mean,
}  # fmt: skip
_MASKS = frozenset({"attn_mask", "attn_bias"})
_OVER_MASKED = frozenset({"Logsumexp", "Logcumsumexp"})
DELICATE = frozenset(_RULES) | _OVER_MASKED
"""Operations of whose arguments more must be known than whether they are finite."""
_FROM_RESULT = {
    "Sqrt": "root-of-negative", "Rsqrt": "division-by-zero", "Reciprocal": "division-by-zero", "Exp": "overflow",
    "Softmax": "empty-softmax", "LogSoftmax": "empty-softmax",
}  # fmt: skip
