"""Operations: how many a step makes, counted from the graphs behind its losses.

Enters: the graph behind a loss, of every backward of a sampled step, fewer and fewer of those. Leaves: an
``operations`` event for each backward: multiplications and additions of matrix products, convolutions and attention, of
the forward and of the backward that follows, the type of most of them, and what may make many and cannot be counted
here: functions of somebody's own, sparse products, recurrent layers of a library, derivatives of derivatives.

Compiled code is one node: what is in it was counted when it was compiled, from the graph that it was made of, unless
its shapes are open. What a compiler saves, or computes again, is not in that.

Shapes are read from the graph, and nothing is computed: what a node made, and what it was made from. A product is
counted once forward, however many losses of the step come of it, and once backward for each of its arguments that has a
gradient; what is computed again to save memory is not. Attention counts whole, whatever its mask leaves out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from brickprof.capture import graph, hub
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.compiled_graphs import Compiled

Shape = tuple[int, ...]
_MOST_NAMES = 8
_MOST_LOOKS = 1 << 12
"""Of the steps that could be counted the first is, the second, fourth, eighth, and so on."""
_MOST_GRAPHS, _MOST_COMPILED_NS = 256, 5_000_000_000
"""Compiled graphs that are counted, and what that may take in all: a second or two for a thousand operations."""
_MOST_BACKWARDS = 16
"""Of one step; where there are more, nobody knows them all."""
_OPAQUE = (
    "Addbmm", "Bilinear", "Cdist", "Cholesky", "Conv", "CppFunction", "CudnnAttention", "CudnnConv", "CudnnRnn",
    "EfficientAttention", "EuclideanDist", "Fft", "FlashAttention", "ForeachMm", "GroupedMm", "Linalg", "Linear",
    "LstmMps", "Matmul", "MiopenConv", "MiopenDepthwise", "MiopenRnn", "MkldnnConv", "MkldnnLinear", "MkldnnRnn",
    "MpsConv", "Nnpack", "ScaledGroupedMm", "ScaledMm", "SlowConv", "SparseAddmm", "SparseMmReduce",
    "SparseSampledAddmm", "SparseSparseMatmul", "ThnnFused", "TriangularSolve", "Trilinear",
)  # fmt: skip
"""Operations that may be dear, by how their names begin, where there is no rule for them."""
_CHEAP = ("LinalgVectorNorm", "LinalgCross")
_TWICE = ("Conv", "SlowConv", "MpsConv", "Linear", "CudnnRnn", "Cdist")
"""Whose derivative is a node of its own, and has one in turn. That of other products is made of products."""
_PYTHONS = torch.autograd.function.BackwardCFunction
_HARMLESS = frozenset({"BackwardHookFunctionBackward"})


class Counted(NamedTuple):
    forward: int
    backward: int
    products: int
    unknown: tuple[str, ...]
    dtype: str = ""
    """In which most are made."""


_NOTHING = Counted(0, 0, 0, ())


class OperationsProbe(Probe):
    name = "operations"
    ways = ("full",)
    levels = ("standard", "deep")

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._step = -1
        self._full = 0
        self._met: set[int] = set()
        """The products of this step so far, each by its number."""
        self._compiled: list[tuple[Compiled, Counted]] = []
        self._compiled_ns = 0

    def graph_compiled(self, made: Compiled) -> None:
        if len(self._compiled) >= _MOST_GRAPHS or self._compiled_ns > _MOST_COMPILED_NS:
            return
        start = time.perf_counter_ns()
        nodes = made.behind()
        if nodes is not None:
            self._compiled.append((made, counted(nodes)))
        spent = time.perf_counter_ns() - start
        self._compiled_ns += spent
        # Once for each graph, beside what it takes to compile it: no measure of what a step costs.
        self.session.correct(-spent)
        self.session.charge_start(spent)

    def _inside(self, function: Any) -> Counted | None:
        """What compiled code makes, where that is known; of the pieces of one graph the last counts for all."""
        for made, found in self._compiled:
            if made.has(function):
                return found if made.ends_with(function) else _NOTHING
        return None

    def backward_begin(self, losses: Sequence[torch.Tensor], upstream: Any) -> None:
        session = self.session
        if not session.on.full or hands_off():
            return
        if session.step != self._step:
            self._step = session.step
            self._full += 1
            self._met = set()
        backwards = session.steps.backwards
        if self._full & (self._full - 1) or self._full > _MOST_LOOKS or backwards > _MOST_BACKWARDS:
            return
        start = time.perf_counter_ns()
        graphs = [graph.nodes(loss) for loss in losses]
        found = counted([node for nodes in graphs for node in nodes], self._met, self._inside)
        whole = all(0 < len(nodes) < graph.MOST_NODES for nodes in graphs) and bool(graphs)
        fields = {
            "forward": found.forward, "backward": found.backward, "products": found.products,
            "unknown": list(found.unknown), "whole": whole and not found.unknown and not hub.in_part,
            "micro": max(backwards - 1, 0), "devices": len({loss.device for loss in losses} | _devices(graphs)),
            "dtype": found.dtype,
        }  # fmt: skip
        session.fact("operations", fields, wanted=True)
        session.spend("full", time.perf_counter_ns() - start)


def _devices(graphs: list[list[graph.Node]]) -> set[torch.device]:
    found = (graph.device(node.function) for nodes in graphs for node in nodes if node.op in _RULES)
    return {device for device in found if device is not None}


def counted(
    nodes: list[graph.Node], met: set[int] | None = None, inside: Callable[[Any], Counted | None] = lambda _: None
) -> Counted:
    """``met``: the numbers of products that another loss of the step has counted before; these are put to them.
    ``inside``: what a node makes that is compiled code."""
    forward = backward = products = 0
    unknown: dict[str, None] = {}
    kinds: Counter[str] = Counter()
    before = set() if met is None else met
    own: set[int] = set()
    for node in nodes:
        if node.order in own:
            continue  # two losses of one backward: what is behind both runs backward once
        made = _made_by(node, inside)
        if made is None:
            continue
        forward += made.forward * (node.order not in before)
        backward += made.backward
        products += made.products
        unknown |= dict.fromkeys(made.unknown)
        kinds[made.dtype] += made.forward
        if made.products:
            own.add(node.order)
    before |= own
    dtype = kinds.most_common(1)[0][0] if kinds else ""
    return Counted(forward, backward, products, tuple(unknown)[:_MOST_NAMES], dtype)


def _made_by(node: graph.Node, inside: Callable[[Any], Counted | None]) -> Counted | None:
    """None where that is next to nothing."""
    rule = _rule(node)
    if rule is None:
        if not _is_opaque(node):
            return None
        found = inside(node.function) if isinstance(node.function, _PYTHONS) else None
        return found if found is not None else Counted(0, 0, 0, (node.op or node.name,))
    made = None if _is_sparse(node.function) else rule(node.function)
    if made is None:
        return Counted(0, 0, 0, (node.op,))
    operations, arguments = made
    return Counted(operations, operations * arguments, 1, (), graph.dtype(node.function))


def _rule(node: graph.Node) -> Rule | None:
    """None for a function of somebody's own that is called like one of torch's, and for a derivative of one."""
    if isinstance(node.function, _PYTHONS) or "BackwardBackward" in node.name:
        return None
    return _RULES.get(node.op) or (_attention if node.op.startswith("ScaledDotProduct") else None)


def _is_opaque(node: graph.Node) -> bool:
    if isinstance(node.function, _PYTHONS):
        return node.name not in _HARMLESS
    if "BackwardBackward" in node.name:
        return node.op.startswith(_TWICE)
    if node.name == "CopySlices":  # of a product in place, where it has more than a value and a place
        return len(node.function.next_functions) > 2
    return node.op.startswith(_OPAQUE) and not node.op.startswith(_CHEAP)


def _is_sparse(function: Any) -> bool:
    return any(tensor.layout is not torch.strided for _, tensor in graph.saved(function))


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
