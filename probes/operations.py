"""Operations: how many a step makes, counted from the graph behind a loss.

Enters: the graph behind a loss, in a few sampled steps. Leaves: an ``operations`` event: multiplications and additions
of matrix products, convolutions and attention, of the forward and of the backward that follows, and what may make many
and cannot be counted here: functions of somebody's own, compiled code, recurrent layers of a library.

Shapes are read from the graph, and nothing is computed: what a node made, and what it was made from. A product is
counted once forward and once backward for each of its arguments that has a gradient; what is computed again to save
memory is not. Attention counts whole, whatever its mask leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch

from brickprof.capture import graph
from brickprof.capture.graph_probe import GraphProbe

Shape = tuple[int, ...]
_MOST_NAMES = 8
_OPAQUE = (
    "CudnnRnn", "MiopenRnn", "MkldnnRnn", "ThnnFused", "Fft", "Linalg", "Cdist", "GroupedMm", "ScaledMm",
    "ScaledGroupedMm", "CppFunction", "Trilinear", "Bilinear",
)  # fmt: skip
"""Operations that may be dear, by how their names begin."""


class Counted(NamedTuple):
    forward: int
    backward: int
    products: int
    unknown: tuple[str, ...]


class OperationsProbe(GraphProbe):
    name = "operations"

    def look(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        found = counted(nodes)
        whole = 0 < len(nodes) < graph.MOST_NODES and not found.unknown
        fields = {"forward": found.forward, "backward": found.backward, "products": found.products}
        self.session.fact("operations", {**fields, "unknown": list(found.unknown), "whole": whole}, wanted=True)


def counted(nodes: list[graph.Node]) -> Counted:
    forward = backward = products = 0
    unknown: dict[str, None] = {}
    for node in nodes:
        rule = _RULES.get(node.op) or (_attention if node.op.startswith("ScaledDotProduct") else None)
        if rule is None:
            if _is_opaque(node):
                unknown[node.op or node.name] = None
            continue
        made = rule(node.function)
        if made is None:
            unknown[node.op] = None
            continue
        operations, arguments = made
        forward += operations
        backward += operations * arguments
        products += 1
    return Counted(forward, backward, products, tuple(unknown)[:_MOST_NAMES])


def _is_opaque(node: graph.Node) -> bool:
    return isinstance(node.function, torch.autograd.function.BackwardCFunction) or node.op.startswith(_OPAQUE)


Rule = Callable[[Any], tuple[int, int] | None]
"""Of a node: its operations, and how many of its arguments have a gradient; None where a shape is not known."""


def _shapes(function: Any, *names: str) -> dict[int, Shape]:
    """The shapes of a node's arguments by their place, as far as they are known; ``names``: as the node calls them."""
    found: dict[int, Shape] = {}
    for place, maker, result in graph.made_from(function):
        shape = graph.shape(maker, result)
        if shape is None and (leaf := getattr(maker, "variable", None)) is not None:
            shape = tuple(leaf.shape)
        if shape is not None:
            found[place] = shape
    saved = dict(graph.saved(function)) if len(found) < len(names) else {}
    for place, name in enumerate(names):
        if place not in found and name in saved:
            found[place] = tuple(saved[name].shape)
    return found


def _gradients(function: Any, *places: int) -> int:
    return sum(place in places for place, _, _ in graph.made_from(function))


def _product(first: int) -> Rule:
    """A product of the arguments at ``first`` and behind it; (..., m, k) with (..., k, n), or with (k,)."""

    def rule(function: Any) -> tuple[int, int] | None:
        made, given = graph.shape(function), _shapes(function)
        left, right = given.get(first), given.get(first + 1)
        inner = left[-1] if left else right[-2 if len(right) > 1 else -1] if right else None
        if made is None or inner is None:
            return None
        return 2 * prod(made) * inner, _gradients(function, first, first + 1)

    return rule


def _linear(function: Any) -> tuple[int, int] | None:
    made, given = graph.shape(function), _shapes(function, "input", "weight")
    inner = next((shape[-1] for place in (1, 0) if (shape := given.get(place))), None)
    if made is None or inner is None:
        return None
    return 2 * prod(made) * inner, _gradients(function, 0, 1)


def _convolution(function: Any) -> tuple[int, int] | None:
    """A kernel (out, in / groups, ...) over every place of the result; where it is transposed, over those of what is
    given, and it is (in, out / groups, ...)."""
    given = _shapes(function, "input", "weight")
    over = given.get(0) if graph.setting(function, "transposed") else graph.shape(function)
    weight = given.get(1)
    if over is None or weight is None:
        return None
    return 2 * prod(over) * prod(weight[1:]), _gradients(function, 0, 1)


def _attention(function: Any) -> tuple[int, int] | None:
    """Scores (queries x keys), and their product with the values; a backward has two products for each of the two."""
    given = _shapes(function, "query", "key", "value")
    query, key = given.get(0), given.get(1)
    value = given.get(2, key)
    if query is None or key is None or value is None or min(map(len, (query, key, value))) < 2:
        return None
    operations = 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return operations, 2 if _gradients(function, 0, 1, 2) else 0


_RULES: dict[str, Rule] = {
    "Mm": _product(0),
    "Bmm": _product(0),
    "Mv": _product(0),
    "Addmm": _product(1),
    "Baddbmm": _product(1),
    "Addmv": _product(1),
    "Linear": _linear,
    "Convolution": _convolution,
    "ConvolutionOverrideable": _convolution,
    "CudnnConvolution": _convolution,
    "MkldnnConvolution": _convolution,
}
