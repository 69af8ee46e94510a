"""What the operations behind a loss were given and gave, from what autograd saved.

Enters: the nodes behind a loss, before its backward. Leaves: a sight of them: a ``Look`` at each saved tensor. On the
host it is read when asked for; of a device one row of numbers is asked for now, and answers when it has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from brickprof.capture import breaking, graph, tensors
from brickprof.capture.breaking import Look
from brickprof.capture.tensors import on_host

_MOST_VALUES = 1024
_MOST_DELICATE = 48
_COUNTS = frozenset({torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool})
_GIVEN = 0
"""No object has this id."""


class Saved(NamedTuple):
    """A tensor that a node saved, and what made it."""

    look: Look
    maker: Any
    output: int
    """Which of its outputs this is."""
    leaf: torch.Tensor | None
    """The tensor itself, where it is one of the weights: nothing else of a step is held beyond it."""


class Sight(Protocol):
    def of(self, node: graph.Node) -> list[Saved]: ...

    def weight(self, leaf: torch.Tensor) -> Look | None:
        """A look at one of the weights; None where nobody looked."""

    def given(self) -> Look | None:
        """A look at what the model was given; None where nobody looked."""


class OnHost:
    def __init__(self, given: torch.Tensor | None) -> None:
        self._given = given

    def of(self, node: graph.Node) -> list[Saved]:
        found = [(name, value) for name, value in _readable(node) if on_host(value)]
        return [Saved(breaking.look(name, tensors.local(value)), *_made(value), _leaf(value)) for name, value in found]

    def weight(self, leaf: torch.Tensor) -> Look | None:
        values = tensors.local(leaf)
        return breaking.look("weight", values) if on_host(values) and _plain(values) else None

    def given(self) -> Look | None:
        given = self._given
        if given is None or not on_host(given) or not _plain(given):
            return None
        return breaking.look("given", tensors.local(given))


class Question:
    """About everything that the nodes on one device saved; ``numbers`` is what has to come home."""

    def __init__(self, loss: torch.Tensor, nodes: Sequence[graph.Node], given: torch.Tensor | None) -> None:
        home = loss.device
        found = [(id(node.function), name, value) for node in nodes for name, value in _readable(node)]
        found = [each for each in found if each[2].device == home][-_MOST_VALUES:]
        delicate = {id(node.function) for node in nodes if node.op in breaking.DELICATE}
        self._close = [i for i, (node, _, _) in enumerate(found) if node in delicate][-_MOST_DELICATE:]
        leaves = {id(leaf): leaf for node in nodes if (leaf := _variable(node)) is not None and leaf.device == home}
        weights = [tensors.local(leaf) for leaf in leaves.values()]
        weights = weights if all(map(_plain, weights)) else []
        if given is not None and given.device == home and _plain(given):
            leaves, weights = {_GIVEN: given, **leaves}, [tensors.local(given), *weights]
        self._rows = [(node, _about(name, value), *_made(value), _leaf(value)) for node, name, value in found]
        self._leaves = [(key, _about("weight", values)) for key, values in zip(leaves, weights, strict=False)]
        parts = [loss.detach().reshape(1).double()]
        values = [tensors.local(value).detach() for _, _, value in found]
        if values or weights:
            parts.append(tensors.infinity_norms([*values, *(each.detach() for each in weights)]).double())
        for i in self._close:
            flat = breaking.some(values[i])
            parts.append(torch.stack([*(end.double() for end in torch.aminmax(flat)), (flat == 0).sum().double()]))
        self.numbers = torch.cat(parts)

    def answered(self, numbers: list[float]) -> Answer:
        rows, leaves = len(self._rows), len(self._leaves)
        largest, rest = numbers[1 : 1 + rows], numbers[1 + rows + leaves :]
        ends = {i: rest[3 * place : 3 * place + 3] for place, i in enumerate(self._close)}
        saved: dict[int, list[Saved]] = {}
        for i, (node, about, maker, output, leaf) in enumerate(self._rows):
            saved.setdefault(node, []).append(Saved(about | _range(largest[i], ends.get(i)), maker, output, leaf))
        told = zip(self._leaves, numbers[1 + rows :], strict=False)
        return Answer(saved, {key: about | _range(size) for (key, about), size in told})


class Answer:
    def __init__(self, saved: dict[int, list[Saved]], weights: dict[int, Look]) -> None:
        self._saved = saved
        self._weights = weights

    def of(self, node: graph.Node) -> list[Saved]:
        return self._saved.get(id(node.function), [])

    def weight(self, leaf: torch.Tensor) -> Look | None:
        return self._weights.get(id(leaf))

    def given(self) -> Look | None:
        return self._weights.get(_GIVEN)


def _readable(node: graph.Node) -> Iterator[tuple[str, torch.Tensor]]:
    """Saved tensors of numbers; a count that something was divided by is one too."""
    counts = node.op == "Div"
    for name, value in graph.saved(node.function):
        if _plain(value):
            yield name, value
        elif counts and name == "other" and value.layout is torch.strided and value.dtype in _COUNTS and value.numel():
            yield name, value.float()


def _plain(value: torch.Tensor) -> bool:
    """Whether this process holds numbers of it that torch can compare; it cannot those of 8 bits."""
    if not value.is_floating_point() or value.layout is not torch.strided or value.element_size() < 2:
        return False
    return tensors.watchable(tensors.local(value))


def _made(value: torch.Tensor) -> tuple[Any, int]:
    return value.grad_fn, value.output_nr


def _leaf(value: torch.Tensor) -> torch.Tensor | None:
    return value if value.is_leaf and value.requires_grad else None


def _variable(node: graph.Node) -> torch.Tensor | None:
    variable = getattr(node.function, "variable", None)
    return variable if isinstance(variable, torch.Tensor) and variable.requires_grad else None


def _about(name: str, value: torch.Tensor) -> Look:
    return {"name": name, "numel": value.numel(), "dtype": str(value.dtype).removeprefix("torch.")}


def _range(largest: float, ends: list[float] | None = None) -> Look:
    """What is known of the values of a device: how many of them are not finite, nobody counted."""
    above = int(math.isinf(largest)) if ends is None else int(ends[1] == math.inf)
    finite = math.isfinite(largest)
    low, high, zeros = ends if ends is not None and finite else (None, largest if finite else None, 0)
    return {
        "min": low, "max": high, "zeros": int(zeros), "nan": int(math.isnan(largest)),
        "inf": int(math.isinf(largest)), "above": above, "finite": finite,
    }  # fmt: skip
