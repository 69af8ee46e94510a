"""Where a loss that is not finite was made.

Enters: a CPU loss that is not finite, before its backward. Leaves: an ``origin`` event: the first operation of the
forward whose inputs were finite and whose output cannot have been, from what autograd saved, and the module it stands
in (see ``places``); or the weights or the data that were broken before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from brickprof.bricks import Brick
from brickprof.capture import graph, tensors
from brickprof.capture.places import Places
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.tensors import on_host

_MOST = 4
_APART = 10
_BACK = 12
_MOST_ELEMENTS = 1 << 20
Look = dict[str, Any]


class _Found(NamedTuple):
    fields: dict[str, Any]
    function: Any = None
    """The operation, where it is one that broke."""


class OriginProbe(Probe):
    name = "origin"
    ways = ("full",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._told = 0
        self._not_before = 0
        self._places = session.places = Places(session, self.name)

    # -- where operations stand

    def models_found(self) -> None:
        self._places.again()

    def step_begin(self, step: int) -> None:
        self._places.watch()

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        for loss in losses[:1]:
            self._places.learn(loss)

    def step_end(self, step: int) -> None:
        self._places.release()

    def compiling(self, module: Any) -> None:
        self._places.release()

    def close(self) -> None:
        self._places.release()

    # -- a loss that is not finite

    def loss_broken(self, loss: torch.Tensor) -> None:
        session = self.session
        if self._told >= _MOST or session.step < self._not_before or hands_off():
            return
        self._told += 1
        self._not_before = session.step + _APART
        session.fact("origin", self._find(loss), always=True)

    def _find(self, loss: torch.Tensor) -> dict[str, Any]:
        self._places.learn(loss)
        nodes = graph.nodes(loss)
        for node in nodes:
            found = self._of(node)
            if found is not None:
                where = self._where(loss, nodes, found) if found.function is not None else {}
                return {"op": node.name, "depth": node.depth, "nodes": len(nodes)} | found.fields | where
        for node in nodes:
            fields = self._of_leaf(getattr(node.function, "variable", None))
            if fields is not None:
                return {"op": node.name, "depth": node.depth, "nodes": len(nodes)} | fields
        return {"op": type(loss.grad_fn).__name__, "kind": "unknown", "inputs": [], "depth": 0, "nodes": len(nodes)}

    def _of(self, node: graph.Node) -> _Found | None:
        """What ``node`` did wrong, or what it was given that was wrong already."""
        inputs, results = [], []
        for name, value in graph.saved(node.function):
            if value.is_floating_point() and on_host(value) and value.layout is torch.strided and value.numel():
                look = _look(name, value)
                if name.startswith(("result", "output")):
                    results.append(look)
                    continue
                inputs.append(look)
                if not look["finite"]:
                    return self._given(value, look)
        kind = _RULES.get(node.op, _none)(node.function, inputs)
        if kind is None and any(not look["finite"] for look in results):
            kind = _FROM_RESULT.get(node.op) or ("overflow" if all(not look["nan"] for look in results) else "unknown")
        return None if kind is None else _Found({"kind": kind, "inputs": inputs or results}, node.function)

    def _given(self, value: torch.Tensor, look: Look) -> _Found:
        maker = value.grad_fn
        if maker is None:
            return _Found(self._of_leaf(value) or {"kind": "input", "inputs": [look]})
        leaf = self._of_leaf(graph.source(maker))
        if leaf is not None:
            return _Found(leaf)
        maker = _reshaped(maker)
        kind = "overflow" if look["inf"] and not look["nan"] else "unknown"
        return _Found({"op": type(maker).__name__, "kind": kind, "inputs": [look]}, maker)

    def _where(self, loss: torch.Tensor, nodes: list[graph.Node], found: _Found) -> dict[str, int]:
        """The module of the operation; of one in a model's own code also the part that made what it was given."""
        brick = self._places.find(loss, nodes, found.function)
        if brick is None:
            return {}
        intern = self.session.journal.brick
        part = self._part(loss, nodes, found.function, brick) if not brick.path else None
        return {"brick": intern(brick)} | ({} if part is None else {"given_by": intern(part)})

    def _part(self, loss: torch.Tensor, nodes: list[graph.Node], function: Any, whole: Brick) -> Brick | None:
        for _ in range(_BACK):
            function = _argument(function)
            brick = None if function is None else self._places.find(loss, nodes, function)
            if brick != whole:
                return brick
        return None

    def _of_leaf(self, leaf: Any) -> dict[str, Any] | None:
        if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad or not on_host(leaf):
            return None
        if not tensors.watchable(tensors.local(leaf)):
            return None
        look = _look("weight", tensors.local(leaf))
        if look["finite"]:
            return None
        entry = self.session.book.get(leaf)
        named = {} if entry is None else {"tensor": entry.number, "brick": entry.brick}
        return {"kind": "weights", "inputs": [look]} | named


def _reshaped(function: Any) -> Any:
    """The operation that made the values which ``function`` only shows in another shape."""
    for _ in range(_BACK):
        following = [each for each, _ in function.next_functions if each is not None]
        if type(function).__name__.partition("Backward")[0] not in _SHAPES or len(following) != 1:
            break
        function = following[0]
    return function


def _argument(function: Any) -> Any:
    """What made the argument of an operation that has one, or the divisor."""
    following = [each for each, _ in function.next_functions]
    if type(function).__name__.startswith("Div") and len(following) == 2:
        return following[1]
    made = [each for each in following if each is not None and not hasattr(each, "variable")]
    return made[0] if len(made) == 1 else None


def _look(name: str, value: torch.Tensor) -> Look:
    flat = value.detach()
    flat = tensors.strided(flat, _MOST_ELEMENTS) if flat.numel() > _MOST_ELEMENTS else flat.reshape(-1)
    nan, inf = int(torch.isnan(flat).sum()), int(torch.isinf(flat).sum())
    finite = flat if not (nan or inf) else flat[torch.isfinite(flat)]
    low, high = (float(part) for part in torch.aminmax(finite)) if finite.numel() else (None, None)
    return {
        "name": name, "min": low, "max": high, "zeros": int((flat == 0).sum()), "nan": nan, "inf": inf,
        "numel": value.numel(), "finite": not (nan or inf),
    }  # fmt: skip


def _named(inputs: Iterable[Look], name: str) -> Look | None:
    return next((look for look in inputs if look["name"] == name), None)


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


_RULES: dict[str, Callable[[Any, list[Look]], str | None]] = {
    "Log": _log, "Log2": _log, "Log10": _log, "Log1P": _log1p, "Log1p": _log1p, "Div": _division, "Pow": _power,
}  # fmt: skip
_FROM_RESULT = {
    "Sqrt": "root-of-negative", "Rsqrt": "division-by-zero", "Reciprocal": "division-by-zero", "Exp": "overflow",
    "Softmax": "empty-softmax", "LogSoftmax": "empty-softmax",
}  # fmt: skip
_SHAPES = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Expand", "Slice",
    "Select", "Clone", "AsStrided", "Alias", "Detach",
})  # fmt: skip
