"""The criterion: which loss function is called, on what, and what it gives.

Enters: calls of the loss functions of ``torch.nn.functional`` with gradients on. Leaves: ``criterion`` events; in some
of them what a few rows of input and target look like: a distribution where logits belong, one constant row, labels
that are all the same. In all of them which of its arguments depend on the parameters.

(Calls with gradients off belong to an evaluation: see ``evaluation``.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from brickprof.capture import glance, graph, tensors
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.sites import caller
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.losses import Call

_CLASSES_FIRST = frozenset({"cross_entropy", "nll", "multi_margin"})
_THOROUGH_STEPS = 8
_THOROUGH_EVERY = 16
_MOST_CALLS = 16
_LATER_LOOKS = 4
_VIEWS = ("View", "Squeeze", "Unsqueeze", "ReshapeAlias", "Select", "Transpose", "Permute", "ToCopy")
_SQUASHING = ("Softmax", "LogSoftmax", "Sigmoid")
_SHAPING = (*_SQUASHING, "LogSigmoid", "Softplus", "Exp", "Relu", "Tanh")
_POSITIVE = ("Softplus", "Exp")
_TARGETS = 4096


class CriterionProbe(Probe):
    name = "criterion"
    ways = ("facts", "full")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._step = -1
        self._calls = 0
        self._steps = 0
        self._later: dict[tuple[str, str], int] = {}

    def criterion(self, call: Call) -> None:
        session = self.session
        if not session.on.facts or session.in_backward or hands_off() or not _plain(call):
            return
        if session.step != self._step:
            self._step, self._calls = session.step, 0
            self._steps += 1
        self._calls += 1
        if self._calls > _MOST_CALLS:
            return
        fields = describe(call) | self._around()
        due = session.on.full or self._steps <= _THOROUGH_STEPS or self._steps % _THOROUGH_EVERY == 0
        thorough = due and (self._calls <= 2 or self._is_new(call.name, str(fields["site"])))
        if thorough:
            fields["made_by"] = _shaped_by(call.input)
            if maker := self._maker(call):
                fields["made_in"] = maker
        self._look(call, fields, thorough)

    def _is_new(self, name: str, site: str) -> bool:
        """Whether a loss behind the first two of its step was hardly looked at so far."""
        if len(self._later) >= _MOST_CALLS and (name, site) not in self._later:
            return False
        looks = self._later[name, site] = self._later.get((name, site), 0) + 1
        return looks <= _LATER_LOOKS

    def _maker(self, call: Call) -> int:
        """The module that squashed what the loss is given, where one did; 0 where none is known."""
        session, function = self.session, _maker_of(call.input)
        if session.places is None or not type(function).__name__.startswith(_SQUASHING):
            return 0
        brick = session.places.find(call.result.grad_fn, graph.nodes(call.result), function)
        graph.forget()  # a backward may never come
        return session.journal.brick(brick) if brick is not None and brick.path else 0

    def _around(self) -> dict[str, Any]:
        root = self.session.models[0].root() if self.session.models else None
        training = None if root is None else root.training
        given = self.session.fed() if self.session.fed is not None else None
        rows = given.shape[0] if given is not None and given.dim() else None
        return {"training": training, "fed": rows, "site": caller()}

    def _look(self, call: Call, fields: dict[str, Any], thorough: bool) -> None:
        session, step = self.session, self.session.step
        parts = [call.result.detach().reshape(-1)[:1].float()] if call.result.numel() == 1 else []
        scalars, shape, targets, variances = len(parts), (0, 0), 0, 0
        if thorough and call.input.numel():
            picked = glance.rows(call.input, 1 if call.name in _CLASSES_FIRST else -1)
            shape = (picked.shape[0], picked.shape[1])
            parts.append(picked.reshape(-1).float())
            if isinstance(call.target, torch.Tensor) and call.target.numel():
                wanted = glance.elements(call.target, _TARGETS).float()
                targets = wanted.numel()
                parts.append(wanted.to(picked.device, non_blocking=True))
            if isinstance(call.variance, torch.Tensor) and call.variance.numel() and targets:
                spread = glance.elements(call.variance, _TARGETS).float()
                variances = spread.numel()
                parts.append(spread.to(picked.device, non_blocking=True))
        if not parts:
            session.fact("criterion", fields)
            return

        def arrived(host: torch.Tensor) -> None:
            x = host.numpy()
            value = float(x[0]) if scalars else None
            found: dict[str, Any] = {"value": value}
            if shape[0]:
                end = scalars + shape[0] * shape[1]
                found["input"] = glance.of_rows(x[scalars:end].reshape(shape))
                if targets:
                    found["target"] = _of_target(x[end : end + targets], call_target, ignored)
                if variances:
                    found["variance"] = glance.of_elements(x[end + targets :])
            session.fact("criterion", fields | found, step=step, wanted=True)

        call_target, ignored = _dtype(call.target), call.ignore_index
        session.readback.read(torch.cat(parts) if len(parts) > 1 else parts[0], arrived)


def describe(call: Call) -> dict[str, Any]:
    """What is known of a call without reading a value."""
    given, target = call.input, call.target
    classes = given.shape[1] if call.name in _CLASSES_FIRST and given.dim() > 1 else None
    indices = isinstance(target, torch.Tensor) and not target.is_floating_point()
    told: dict[str, Any] = {"options": call.options} if call.options else {}
    return told | {
        "name": call.name,
        "value": None,
        "reduction": call.reduction,
        "classes": classes,
        "rows": target.numel() if indices and classes else _rows(call),
        "grad": bool(call.result.requires_grad),
        "shapes": [list(given.shape), list(target.shape) if isinstance(target, torch.Tensor) else None],
        "dtype": _dtype(given),
        "requires": [_requires(given), _requires(target), _requires(call.variance)],
    }


def _rows(call: Call) -> int:
    given = call.input
    place = 1 if call.name == "ctc" and given.dim() == 3 else 0  # time comes first there
    return given.shape[place] if given.dim() else 1


def _requires(given: Any) -> bool | None:
    """Whether an argument depends on what is trained; None where it is no tensor."""
    return bool(given.requires_grad) if isinstance(given, torch.Tensor) else None


def _shaped_by(tensor: torch.Tensor) -> str | None:
    """The function that gave the values of ``tensor`` their range, where it is one that does."""
    function = _maker_of(tensor)
    name = _called(function)
    if name not in ("Add", "Clamp", "ClampMin"):
        return name if name in _SHAPING else None
    known = [inner for inner, _ in function.next_functions if inner is not None]
    inner = _called(known[0]) if len(known) == 1 else ""  # softplus(x) + 1e-3 is above zero as well
    return inner if inner in (_POSITIVE if name == "Add" else _SHAPING) else None


def _called(function: Any) -> str:
    return type(function).__name__.partition("Backward")[0]


def _maker_of(tensor: torch.Tensor) -> Any:
    """The operation that made the values of ``tensor``, whatever shape they were given since."""
    function = tensor.grad_fn
    while function is not None and type(function).__name__.startswith(_VIEWS) and function.next_functions:
        function = function.next_functions[0][0]
    return function


def _plain(call: Call) -> bool:
    kinds = (torch.Tensor, torch.nn.Parameter)
    return type(call.input) in kinds and type(call.result) in kinds and tensors.watchable(call.result)


def _dtype(value: Any) -> str | None:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None


def _of_target(x: glance.Array, dtype: str | None, ignored: int | None) -> dict[str, Any]:
    skipped = x == ignored if ignored is not None and dtype is not None and "int" in dtype else None
    kept = x if skipped is None else x[~skipped]
    found = glance.of_elements(kept) if kept.size else {"finite": True}
    distinct, counts = np.unique(kept, return_counts=True)
    classes = (dtype is not None and "int" in dtype) or (len(distinct) == 2 and distinct[0] == 0 and distinct[1] == 1)
    return {
        "dtype": dtype,
        "min": found.get("min"),
        "max": found.get("max"),
        "std": found.get("std"),
        "distinct": len(counts),
        "entropy": _entropy(counts) if classes else None,
        "finite": found["finite"],
        "ignored": 0.0 if skipped is None else float(skipped.mean()),
        "looked": int(x.size),
    }


def _entropy(counts: Any) -> float | None:
    """What knowing only how often each class comes costs, in nats; None where too few targets say it.

    The entropy of a small sample is too low by about (classes - 1) / (2 samples).
    """
    total = int(counts.sum())
    if not total or total < 4 * len(counts):
        return None
    share = counts / total
    return float(-(share * np.log(share)).sum() + (len(counts) - 1) / (2 * total))
