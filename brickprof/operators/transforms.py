"""The shape transforms under which rows must keep their bits, for any operation that says which arguments hold rows.

Enters: a problem. Leaves: cases; each builds a variant of the problem and says which of its rows is which row of the
baseline. T5 and T7 belong to the operation itself (``Operator.schedules``), and so does what T6 has beyond layout.

    T1 population   the same batch again; a row alone; the first few; the batch in two parts
    T2 position     rows in another order
    T3 neighbours   every other row replaced: by other content, by large numbers, by NaN
    T4 padding      rows in front or behind that nobody asked for: zeros, large numbers, NaN
    T6 packing      rows gathered by an index, some twice; rows that do not lie side by side in memory

An argument without rows (a weight) sums over all of them, so its gradient can be equal only where the same rows come in
the same order: again, in another layout, and before padding whose upstream gradient is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from brickprof.operators.operator import Arguments
from brickprof.operators.problem import Problem

TRANSFORMS = ("T1", "T2", "T3", "T4", "T5", "T6", "T7")
LARGE = 1e4
"""Finite in fp16, and far above what a problem holds; what a row makes of it is its own affair."""
_FEW = (2, 17, 48, 200)


@dataclass(frozen=True)
class Variant:
    arguments: Arguments
    upstream: Tensor
    was: Tensor
    """Rows of the baseline ..."""
    now: Tensor
    """... and where they are in the variant."""


@dataclass(frozen=True)
class Case:
    transform: str
    name: str
    build: Callable[[Problem, Tensor], Variant]
    """From the problem and the upstream gradient of its output."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    """Whether gradients of arguments without rows must be equal too."""
    evidence: bool = True
    """Whether to hold it shows anything: calling twice with the same batch does not."""
    layout: bool = False
    """Whether only memory changes: an operation may refuse that, clearly, instead of computing."""


def cases(problem: Problem, transforms: Collection[str] = TRANSFORMS) -> list[Case]:
    """Every case that applies to ``problem``, in the order of the transforms."""
    made = [_again()]
    if problem.population > 0:
        for make in (_populations, _positions, _neighbours, _paddings, _packings):
            made += make(problem.population)
    return [case for case in made if case.transform in transforms]


# -- T1


def _again() -> Case:
    return Case("T1", "the same batch again", _same, whole=True, evidence=False)


def _populations(rows: int) -> list[Case]:
    if rows < 2:
        return []
    cut = max(1, rows * 100 // 256)
    parts = {(at, at + 1): f"row {at} alone" for at in (0, rows // 2, rows - 1)}
    parts |= {(0, count): f"the first {count} rows" for count in sorted({*_FEW, cut}) if 1 < count < rows}
    parts |= {(cut, rows): f"the rows from {cut} on"} if cut < rows - 1 else {}
    return [_part(name, first, end) for (first, end), name in parts.items()]


def _part(name: str, first: int, end: int) -> Case:
    def build(problem: Problem, upstream: Tensor) -> Variant:
        return _taken(problem, upstream, torch.arange(first, end))

    return Case("T1", name, build, {"first": first, "rows": end - first})


# -- T2


def _positions(rows: int) -> list[Case]:
    if rows < 2:
        return []

    def shuffled(problem: Problem) -> Tensor:
        return torch.randperm(rows, generator=problem.order())

    return [
        _ordered("rows reversed", lambda _: torch.arange(rows).flip(0)),
        _ordered("rows moved on by one", lambda _: torch.arange(rows).roll(1)),
        _ordered("rows shuffled", shuffled),
    ]


def _ordered(name: str, order: Callable[[Problem], Tensor]) -> Case:
    return Case("T2", name, lambda problem, upstream: _taken(problem, upstream, order(problem)))


# -- T3


def _neighbours(rows: int) -> list[Case]:
    if rows < 2:
        return []
    fillings = {"other content": None, "large numbers": LARGE, "NaN": float("nan")}
    return [_beside(f"every other row is {name}", value) for name, value in fillings.items()]


def _beside(name: str, value: float | None) -> Case:
    def build(problem: Problem, upstream: Tensor) -> Variant:
        others = torch.arange(1, problem.population, 2)
        content = problem.neighbours()
        made = dict(problem.arguments)
        for argument, dimension in problem.operator.rows.items():
            rows = _rows(content[argument], dimension, others)
            if value is not None and rows.is_floating_point():
                rows = torch.full_like(rows, value)
            made[argument] = made[argument].index_copy(dimension, others.to(rows.device), rows)
        kept = torch.arange(0, problem.population, 2)
        stirred = upstream.index_copy(0, others.to(upstream.device), -2 * _rows(upstream, 0, others))
        return Variant(made, stirred, kept, kept)

    return Case("T3", name, build)


# -- T4


def _paddings(rows: int) -> list[Case]:
    some = max(1, rows * 28 // 100)
    return [
        _padding("behind", some, "zeros", quiet=True),
        _padding("behind", some, "copies", quiet=True),
        _padding("behind", rows + 1, "copies", quiet=True),
        _padding("behind", 1, "large numbers"),
        _padding("behind", some, "NaN"),
        _padding("in front", 1, "zeros"),
        _padding("in front", some, "large numbers"),
        _padding("in front", 1, "NaN"),
    ]


def _padding(side: str, amount: int, content: str, *, quiet: bool = False) -> Case:
    """``quiet``: the upstream gradient of the padding is zero, as that of masked tokens is."""

    def build(problem: Problem, upstream: Tensor) -> Variant:
        made = dict(problem.arguments)
        for argument, dimension in problem.operator.rows.items():
            made[argument] = _joined(made[argument], _filled(made[argument], dimension, amount, content), dimension)
        extra = _copies(upstream, 0, amount)
        sent = _joined(upstream, torch.zeros_like(extra) if quiet else extra, 0)
        was = torch.arange(problem.population)
        return Variant(made, sent, was, was + amount if front else was)

    def _joined(rows: Tensor, padding: Tensor, dimension: int) -> Tensor:
        return torch.cat([padding, rows] if front else [rows, padding], dimension)

    front = side == "in front"
    shown = f"{amount} row{'s' * (amount > 1)} of {content} {side}" + (", upstream gradient 0" if quiet else "")
    return Case("T4", shown, build, {"side": side, "rows": amount, "content": content}, whole=quiet)


def _filled(tensor: Tensor, dimension: int, amount: int, content: str) -> Tensor:
    """Rows of padding; integers (targets, tokens) have no such values and repeat rows that are valid."""
    rows = _copies(tensor, dimension, amount)
    value = {"zeros": 0.0, "large numbers": LARGE, "NaN": float("nan")}.get(content)
    return rows if value is None or not rows.is_floating_point() else torch.full_like(rows, value)


def _copies(tensor: Tensor, dimension: int, amount: int) -> Tensor:
    return _rows(tensor, dimension, torch.arange(amount) % tensor.shape[dimension])


# -- T6


def _packings(rows: int) -> list[Case]:
    def gathered(problem: Problem, upstream: Tensor) -> Variant:
        order = torch.randint(0, rows, (rows + 3,), generator=problem.order())
        return _taken(problem, upstream, order)

    return [
        Case("T6", "rows gathered by an index, some twice", gathered, {"rows": rows + 3}),
        Case("T6", "rows apart in memory", _apart, whole=True, layout=True),
    ]


def _apart(problem: Problem, upstream: Tensor) -> Variant:
    same = _same(problem, upstream)
    apart = {name: _strided(problem.arguments[name], at) for name, at in problem.operator.rows.items()}
    return Variant({**same.arguments, **apart}, upstream, same.was, same.now)


def _strided(tensor: Tensor, dimension: int) -> Tensor:
    """The same rows, every second one of a buffer twice as long; NaN lies between them."""
    shape = list(tensor.shape)
    shape[dimension] *= 2
    between = float("nan") if tensor.is_floating_point() else 0
    view = torch.full(shape, between, dtype=tensor.dtype, device=tensor.device)
    view = view[(slice(None),) * dimension + (slice(None, None, 2),)]
    return view.copy_(tensor)


# -- rows


def _same(problem: Problem, upstream: Tensor) -> Variant:
    rows = torch.arange(max(problem.population, 0))
    return Variant(problem.arguments, upstream, rows, rows)


def _taken(problem: Problem, upstream: Tensor, index: Tensor) -> Variant:
    made = dict(problem.arguments)
    for argument, dimension in problem.operator.rows.items():
        made[argument] = _rows(made[argument], dimension, index)
    return Variant(made, _rows(upstream, 0, index), index, torch.arange(len(index)))


def _rows(tensor: Tensor, dimension: int, index: Tensor) -> Tensor:
    return tensor.index_select(dimension, index.to(tensor.device))
