"""The loss functions of ``torch.nn.functional``, whoever calls them (``nn.CrossEntropyLoss`` does too).

Enters: calls. Leaves: a ``criterion`` signal in steps that are looked at, an ``evaluated`` signal for each call
with gradients off. Where nobody looks, a call costs two flags more.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from brickprof.capture import hub
from brickprof.capture.desk import desk
from brickprof.capture.taps import Replace

_NAMES = {
    "cross_entropy": "cross_entropy", "nll_loss": "nll", "mse_loss": "mse", "l1_loss": "l1",
    "smooth_l1_loss": "smooth_l1", "huber_loss": "huber", "kl_div": "kl_div", "binary_cross_entropy": "bce",
    "binary_cross_entropy_with_logits": "bce_logits", "gaussian_nll_loss": "gaussian_nll",
    "poisson_nll_loss": "poisson_nll", "hinge_embedding_loss": "hinge", "soft_margin_loss": "soft_margin",
    "multi_margin_loss": "multi_margin", "multilabel_soft_margin_loss": "multilabel_soft_margin",
    "triplet_margin_loss": "triplet", "cosine_embedding_loss": "cosine", "margin_ranking_loss": "margin_ranking",
    "ctc_loss": "ctc", "multilabel_margin_loss": "multilabel_margin",
    "triplet_margin_with_distance_loss": "triplet_distance",
}  # fmt: skip
_OPTIONS = {"kl_div": ("log_target",), "poisson_nll_loss": ("log_input",)}
"""Flags that say in which form a function expects what it is given."""
_compiling = torch.compiler.is_compiling
_grad_on = torch.is_grad_enabled


class Call(NamedTuple):
    """One call of a loss function."""

    name: str
    input: Any
    target: Any
    result: Any
    reduction: str
    ignore_index: int | None
    variance: Any = None
    """What a Gaussian likelihood takes for the variance."""
    options: dict[str, bool] | None = None


def install(replace: Replace) -> None:
    for name, short in _NAMES.items():
        if name in functional.__dict__:
            replace(functional, name, partial(_tap, name=short))


def _tap(original: Any, name: str) -> Any:
    order = list(inspect.signature(original).parameters)
    ignores = order.index("ignore_index") if "ignore_index" in order else None
    reduces = order.index("reduction")
    flags = {flag: inspect.signature(original).parameters[flag].default for flag in _OPTIONS.get(original.__name__, ())}

    def call(*args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        if desk.listening or (not _grad_on() and hub.sessions):
            with contextlib.suppress(Exception):  # the loss is computed; what we make of it is our affair
                _tell(args, kwargs, result)
        return result

    told_of: list[weakref.ref[Any]] = []

    def _tell(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if told_of and told_of[0]() is result:
            return  # under a function mode (a default device is one) torch calls the function once more inside
        told_of[:] = [weakref.ref(result)]
        given = dict(zip(order, args, strict=False)) | kwargs
        reduction = str(given.get(order[reduces], "mean"))
        ignored = None if ignores is None else given.get(order[ignores], -100)
        options = {flag: bool(given.get(flag, usual)) for flag, usual in flags.items()} or None
        told = Call(
            name, given.get(order[0]), given.get("target"), result, reduction, ignored, given.get("var"), options
        )
        if _grad_on():
            hub.emit("criterion", told)
        else:
            hub.tell("evaluated", told)

    # TorchScript reads a function's source and globals: it is shown the original's.
    call.__dict__["__script_if_tracing_wrapper"] = True
    call.__dict__["__original_fn"] = original
    return call
