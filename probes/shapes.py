"""Shapes: tables that a loss makes of single values, and matrix products that nothing lies between.

Enters: the graph behind a loss, in a few sampled steps. Leaves: a ``shapes`` event.

A table: an operation near the loss crosses one value for each sample with as many fixed values, (N, 1) with (N,), and
all that comes of it is added up. Whoever unsqueezes, transposes or pairs outputs with outputs means it, and so does
whoever gives a table to begin with; what cannot be told is left out.

Squashed twice: a log-softmax of a softmax, which nobody means.

A chain: how many products with weights of their own lie one behind the other, and whether anything but sums and other
views of values lies between them. What is not known to be linear counts as bent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from brickprof.capture import graph
from brickprof.capture.graph_probe import GraphProbe
from brickprof.capture.tensors import on_host

Shape = tuple[int, ...]
_SMALLEST = 4
_CORNER = 8
_MASK = 256
_OPERANDS = {"Pow": ("self", "exponent")}

_VIEWS = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "T", "Transpose", "Permute", "Expand", "Slice",
    "Select", "Split", "SplitWithSizes", "Unbind", "Cat", "Stack", "Clone", "ToCopy", "Alias", "AsStrided", "Flip",
    "Roll", "Repeat",
})  # fmt: skip
_TURNS = frozenset({"T", "Transpose", "Permute", "Expand"})
_SUMS = frozenset({"Add", "Sub", "Rsub", "Neg"})
_CROSSES = frozenset({"Add", "Sub", "Rsub", "Mul", "Div", "Pow", "Maximum", "Minimum"})
_EACH = _CROSSES | frozenset({
    "Neg", "Abs", "Exp", "Expm1", "Log", "Log1P", "Log2", "Sqrt", "Rsqrt", "Reciprocal", "Clamp", "ClampMin",
    "ClampMax", "Where", "Softplus", "LogSigmoid", "Sigmoid", "Tanh", "Cosh", "Sinh", "Relu", "LeakyRelu", "Logaddexp",
    "Xlogy", "Sign", "Sgn", "Erf", "Lgamma", "Digamma", "Sin", "Cos", "Atan", "ToCopy", "Clone",
})  # fmt: skip
_TOTALS = frozenset({"Sum", "Mean", "LinalgVectorNorm", "Norm"})
_NEAR = _EACH | _TOTALS | _VIEWS
_PRODUCTS = frozenset({
    "Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Mv", "Addmv", "Matmul", "Linear", "Convolution",
    "ConvolutionOverrideable", "CudnnConvolution", "CudnnConvolutionTranspose", "MkldnnConvolution", "MkldnnLinear",
    "MpsConvolution", "SlowConv2D", "ThnnConv2D",
})  # fmt: skip
_LINEAR = _VIEWS | _SUMS | frozenset({
    "AccumulateGrad", "Sum", "Mean", "Cumsum", "Index", "IndexSelect", "Gather", "ConstantPadNd", "ReflectionPad1D",
    "ReflectionPad2D", "ReplicationPad1D", "ReplicationPad2D", "AvgPool1D", "AvgPool2D", "AvgPool3D",
    "AdaptiveAvgPool1D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "UpsampleNearest1D", "UpsampleNearest2D",
    "UpsampleBilinear2D", "Embedding", "NativeDropout", "FusedDropout", "Unfold", "Im2Col", "Col2Im", "PixelShuffle",
})  # fmt: skip
_PERHAPS_LINEAR = _LINEAR | _PRODUCTS | frozenset({"Mul", "Div", "EmbeddingBag"})


class _Table(NamedTuple):
    node: graph.Node
    given: Shape
    made: Shape
    along: tuple[int, int]
    """The two dimensions: of what was given, and of what it was crossed with."""
    fixed: Shape | None
    """The shape of what it was crossed with, where the node saved it."""
    corner: torch.Tensor | None


class _Chain(NamedTuple):
    weights: tuple[int, ...]
    bent: bool


class ShapesProbe(GraphProbe):
    name = "shapes"

    def look(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        if 0 < len(nodes) < graph.MOST_NODES:
            self._tell(loss, nodes)

    def _squashed(self, loss: torch.Tensor, nodes: list[graph.Node]) -> dict[str, Any] | None:
        """A softmax whose result is given to a log-softmax, and where it stands."""
        session = self.session
        for node in nodes:
            inner = _softmax_inside(node)
            if inner is not None:
                brick = session.places.find(loss.grad_fn, nodes, inner) if session.places is not None else None
                known = brick is not None and brick.path
                return {"depth": node.depth, "brick": session.journal.brick(brick) if brick and known else 0}
        return None

    def _tell(self, loss: torch.Tensor, nodes: list[graph.Node]) -> None:
        session, step = self.session, self.session.step
        fed = session.fed() if session.fed is not None else None
        chain = _chain(nodes, session.book)
        fields = {
            "nodes": len(nodes), "fed": list(fed.shape) if fed is not None else None, "chain": list(chain.weights),
            "bent": chain.bent, "matrices": sorted(_matrices(nodes, session.book)), "table": None,
            "squashed": self._squashed(loss, nodes),
        }  # fmt: skip
        table = _table(nodes)
        if table is None:
            session.fact("shapes", fields, wanted=True)
            return
        told = {"op": table.node.op, "given": list(table.given), "made": list(table.made), "depth": table.node.depth,
                "fixed": None if table.fixed is None else list(table.fixed), "apart": None}  # fmt: skip
        if table.corner is None:
            session.fact("shapes", fields | {"table": told}, wanted=True)
            return
        finest = max(torch.finfo(table.corner.dtype).eps, torch.finfo(torch.float32).eps)
        size = table.corner.shape

        def arrived(host: torch.Tensor) -> None:
            apart = _apart(host.numpy().reshape(size), finest)
            session.fact("shapes", fields | {"table": told | {"apart": apart}}, step=step, wanted=True)

        session.readback.read(table.corner.float().reshape(-1), arrived)


def _softmax_inside(node: graph.Node) -> Any:
    """The softmax that a log-softmax over the same dimension is taken of."""
    if node.op != "LogSoftmax" or not node.function.next_functions:
        return None
    inner, looked_at = node.function.next_functions[0][0], False
    while inner is not None and graph.named(inner).op in _VIEWS and inner.next_functions:
        inner, looked_at = inner.next_functions[0][0], True
    if inner is None or graph.named(inner).op != "Softmax":
        return None
    same = graph.setting(inner, "dim") == graph.setting(node.function, "dim")
    return inner if same or looked_at else None


# -- tables


class _Uses:
    """What becomes of the result of each node."""

    def __init__(self, nodes: list[graph.Node]) -> None:
        self._by: dict[int, list[tuple[graph.Node, int]]] = {}
        for node in nodes:
            for at, each, _ in graph.made_from(node.function):
                self._by.setdefault(id(each), []).append((node, at))

    def of(self, function: Any) -> list[tuple[graph.Node, int]]:
        return self._by.get(id(function), [])

    def after(self, function: Any) -> set[int]:
        """The ids of all nodes that are computed from this one, and its own."""
        found, waiting = {id(function)}, [function]
        while waiting:
            for node, _ in self.of(waiting.pop()):
                if id(node.function) not in found:
                    found.add(id(node.function))
                    waiting.append(node.function)
        return found


def _table(nodes: list[graph.Node]) -> _Table | None:
    """The table nearest to the loss that nobody can have meant."""
    crossed = [(node, *found) for node in _near(nodes) if (found := _crossed(node)) is not None]
    if not crossed or any(_pairs(node, {made for _, _, made, _ in crossed}) for node in nodes):
        return None
    uses = _Uses(nodes)
    for node, given, made, along in crossed:
        ((_, operand, place),) = graph.made_from(node.function)
        if _meant(operand, place) or not _added_up(node, uses):
            continue
        fixed = _fixed(node)
        if fixed is not None and not _varies_once(fixed, made, along):
            continue
        corner = None if fixed is not None else _corner(node, made, along, uses)
        if fixed is not None or corner is not None:
            return _Table(node, given, made, along, fixed, corner)
    return None


def _near(nodes: list[graph.Node]) -> list[graph.Node]:
    """The operations from which only sums and operations on single values lead to the loss, the nearest first."""
    by_function = {id(node.function): node for node in nodes}
    found = [min(nodes, key=lambda node: node.depth)]
    seen = {id(found[0].function)}
    for node in found:
        if node.op not in _NEAR:
            continue
        for _, each, _ in graph.made_from(node.function):
            if id(each) not in seen and id(each) in by_function:
                seen.add(id(each))
                found.append(by_function[id(each)])
    return found


def _crossed(node: graph.Node) -> tuple[Shape, Shape, tuple[int, int]] | None:
    """What an operation with one differentiable operand was given and made, where one dimension came to be twice."""
    inputs = graph.made_from(node.function) if node.op in _CROSSES else []
    made = graph.shape(node.function)
    given = graph.shape(inputs[0][1], inputs[0][2]) if len(inputs) == 1 else None
    if given is None or made is None or given == made or len(given) > len(made):
        return None
    padded = _padded(given, len(made))
    grown = [at for at, (before, after) in enumerate(zip(padded, made, strict=True)) if before != after]
    if len(grown) != 1 or padded[grown[0]] != 1 or made[grown[0]] < _SMALLEST:
        return None
    same = [at for at, size in enumerate(padded) if size == made[grown[0]]]
    return (given, made, (same[0], grown[0])) if same else None


def _padded(shape: Shape, length: int) -> Shape:
    return (1,) * (length - len(shape)) + shape


def _pairs(node: graph.Node, tables: set[Shape]) -> bool:
    """Whether an operation makes a table of that shape of two operands that both need gradients."""
    inputs = graph.made_from(node.function) if tables and node.op in _EACH else []
    made = graph.shape(node.function) if len(inputs) > 1 else None
    return made in tables and all(graph.shape(each, place) != made for _, each, place in inputs)


def _meant(function: Any, place: int) -> bool:
    """Whether the operand was given the dimension of one, or turned, on purpose."""
    while True:
        op, shape = graph.named(function).op, graph.shape(function, place)
        below = graph.made_from(function)
        if len(below) != 1 or shape is None:
            return False
        before = graph.shape(below[0][1], below[0][2])
        if op in _VIEWS and before is not None and (len(before) < len(shape) or (op in _TURNS and before != shape)):
            return True
        if before != shape or op not in _EACH | _VIEWS:
            return False
        _, function, place = below[0]


def _added_up(table: graph.Node, uses: _Uses) -> bool:
    """Whether all that becomes of the table is, value by value, added up to the loss."""
    from_it = uses.after(table.function)
    seen: set[tuple[int, bool]] = set()
    waiting = [(table.function, False)]
    while waiting:
        function, partly = waiting.pop()
        for node, _ in uses.of(function):
            shape = graph.shape(node.function)
            if shape is None or not _plain(node, shape, partly, from_it):
                return False
            after = partly or node.op in _TOTALS
            if math.prod(shape) != 1 and (id(node.function), after) not in seen:
                seen.add((id(node.function), after))
                waiting.append((node.function, after))
    return True


def _plain(node: graph.Node, shape: Shape, partly: bool, from_it: set[int]) -> bool:
    if node.op in _TOTALS or (node.op in _VIEWS and node.op not in _TURNS):
        return True
    if partly:
        return node.op in _SUMS or node.op in ("Mul", "Div")
    others = [each for _, each, place in graph.made_from(node.function) if graph.shape(each, place) == shape]
    return node.op in _EACH and all(id(each) in from_it for each in others)


def _fixed(node: graph.Node) -> Shape | None:
    """The shape of the operand that needs no gradient, as far as the node saved it."""
    ((at, _, _),) = graph.made_from(node.function)
    name = _OPERANDS.get(node.op, ("self", "other"))[1 - at] if at < 2 else ""
    return next((tuple(value.shape) for saved, value in graph.saved(node.function) if saved == name), None)


def _varies_once(fixed: Shape, made: Shape, along: tuple[int, int]) -> bool:
    padded = _padded(fixed, len(made))
    return padded[along[0]] == 1 and padded[along[1]] == made[along[1]]


def _corner(node: graph.Node, made: Shape, along: tuple[int, int], uses: _Uses) -> torch.Tensor | None:
    """A corner of the table, where somebody saved it (or it with another sign or scale)."""
    if node.op not in _SUMS:
        return None
    waiting = [node.function]
    for _ in range(_CORNER):
        function = waiting.pop() if waiting else None
        for use, at in uses.of(function) if function is not None else ():
            name = ("self", "other")[at] if at < 2 else ""
            saved = next((value for saved, value in graph.saved(use.function) if saved == name), None)
            if saved is not None and tuple(saved.shape) == made and saved.is_floating_point():
                return _cut(saved.detach(), along)
            if use.op in ("Neg", "Clone") or (use.op in ("Mul", "Div") and _scaled(use)):
                waiting.append(use.function)
    return None


def _cut(table: torch.Tensor, along: tuple[int, int]) -> torch.Tensor:
    for at in reversed(range(table.dim())):
        table = table.narrow(at, 0, min(_CORNER, table.shape[at])) if at in along else table.narrow(at, 0, 1)
    return table.squeeze().clone()


def _apart(corner: Any, finest: float) -> float | None:
    """How far a table is from a sum of a row and a column, in roundings of its largest value."""
    largest = float(abs(corner).max())
    rest = corner - corner[:1] - corner[:, :1] + corner[:1, :1]
    return round(float(abs(rest).max()) / (largest * finest), 3) if 0.0 < largest < math.inf else None


# -- chains


def _chain(nodes: list[graph.Node], book: Any) -> _Chain:
    """The weights that lie one behind the other; of several ways to the loss the one with the fewest."""
    products = list(_last_products(nodes))
    under = _under(products)
    if not under:
        return _Chain((), True)
    ways: dict[int, _Chain] = {}
    for node in nodes:
        if id(node.function) in under and node.op != "AccumulateGrad":
            ways[id(node.function)] = _behind(node, ways, book)
    last = [ways[id(function)] for function in products]
    return _Chain(min((way.weights for way in last), key=len), any(way.bent for way in last))


def _under(products: list[Any]) -> set[int]:
    """The ids of these nodes and of all that they are computed from; none where one is sure to be bent."""
    found, waiting = {id(function) for function in products}, list(products)
    while waiting:
        function = waiting.pop()
        if graph.named(function).op not in _PERHAPS_LINEAR:
            return set()
        for _, each, _ in graph.made_from(function):
            if id(each) not in found:
                found.add(id(each))
                waiting.append(each)
    return found


def _behind(node: graph.Node, ways: dict[int, _Chain], book: Any) -> _Chain:
    below = [each for _, each, _ in graph.made_from(node.function)]
    weights = [_weight(each, book) for each in below]
    data = [each for each, weight in zip(below, weights, strict=True) if weight is None]
    come = [ways[id(each)] for each in data if id(each) in ways]
    longest = max((way.weights for way in come), key=len, default=())
    bent = any(way.bent for way in come)
    if node.op not in _PRODUCTS:
        return _Chain(longest, bent or not _is_linear(node, len(data)))
    own = [weight[0] for weight in weights if weight is not None and weight[1] > 1]
    again = any(number in way.weights for way in come for number in own)
    return _Chain((*longest, *own), bent or len(data) > 1 or len(own) > 1 or again)


def _weight(function: Any, book: Any) -> tuple[int, int] | None:
    """The number and the dimensions of the parameter that this only looks at."""
    leaf = graph.source(function)
    entry = None if leaf is None else book.get(leaf)
    return None if entry is None else (int(entry.number), leaf.dim())


def _is_linear(node: graph.Node, data: int) -> bool:
    if node.op in ("Mul", "Div"):
        factors = len(graph.made_from(node.function))
        return data <= 1 and ((factors == 2 and node.op == "Mul") or _scaled(node) or _thinned(node))
    return node.op in _LINEAR or (node.op == "EmbeddingBag" and graph.setting(node.function, "mode") in (0, 1))


def _scaled(node: graph.Node) -> bool:
    """Multiplied with, or divided by, one fixed number."""
    (first, *more) = graph.made_from(node.function)
    if more or (node.op == "Div" and first[0] != 0):
        return False
    fixed = _fixed(node)
    return fixed is not None and math.prod(fixed) == 1


def _thinned(node: graph.Node) -> bool:
    """Dropout as the host does it: some are zero, the others are all raised by one factor."""
    ((at, _, _),) = graph.made_from(node.function)
    name = ("self", "other")[1 - at]
    mask = next((value for saved, value in graph.saved(node.function) if saved == name), None)
    if mask is None or not on_host(mask) or not mask.is_floating_point() or not mask.is_contiguous():
        return False
    values = set(mask.detach().view(-1)[:_MASK].tolist()) - {0.0}
    return len(values) == 1 and min(values) > 1.0


def _last_products(nodes: list[graph.Node]) -> Iterable[Any]:
    """The products that lie nearest to the loss, on every way to it."""
    start = min(nodes, key=lambda node: node.depth).function
    products = {id(node.function) for node in nodes if node.op in _PRODUCTS}
    seen, waiting = {id(start)}, [start]
    while waiting:
        function = waiting.pop()
        if id(function) in products:
            yield function
            continue
        for _, each, _ in graph.made_from(function):
            if id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)


def _matrices(nodes: list[graph.Node], book: Any) -> set[int]:
    """The parameters of two dimensions or more that the loss depends on."""
    leaves = [leaf for node in nodes if (leaf := getattr(node.function, "variable", None)) is not None]
    entries = [book.get(leaf) for leaf in leaves if leaf.dim() > 1]
    return {int(entry.number) for entry in entries if entry is not None}
