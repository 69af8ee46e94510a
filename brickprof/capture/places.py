"""Which module an operation of the forward stands in.

Enters: the modules of the watched models, hooked during a few early steps, and the losses of those steps. Leaves: for
an operation behind a later loss, the innermost module whose call made it.

Autograd numbers operations as it makes them, so that the numbers at the beginning and the end of a call tell which ones
were made in it. A model that does the same in every step puts an operation at the same distance from the loss in every
step; that is what is kept. Where the operations between it and the loss are others than they were, nothing is said.
Nothing inside a compiled module is hooked; it itself is, from outside.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from brickprof.bricks import Brick, Kind
from brickprof.capture import graph, models
from brickprof.capture.seats import around
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off

_MOST_MODULES = 2048
_MOST_TURNS = 40_000
_MOST_MAPS = 4
_MOST_LOSSES = 4
_APART = 8
_OUTSIDE = -1
_ALIKE = 0.9
_LATE = 1 << 60
"""Leaves have no number of their own, but one that is larger than all others."""
_next_number: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)
_compiling = torch.compiler.is_compiling
_counter = time.perf_counter_ns


class Place(NamedTuple):
    op: str
    brick: int
    """A place in the list of bricks; -1 outside every module."""


Map = dict[int, Place]
"""By the distance from the loss."""


class _Trail:
    """Where the forward was, by the number of the next operation."""

    def __init__(self, thread: int) -> None:
        self._begun = 0 if _next_number is None else _next_number()
        self._inside = False
        self.whole = True
        self.spent = 0
        self._thread = thread
        self._numbers: list[int] = []
        self._bricks: list[int] = []
        self._open: list[int] = []

    @property
    def usable(self) -> bool:
        return self.whole and bool(self._numbers) and not self._open

    def of(self, number: int) -> int:
        turn = bisect_right(self._numbers, number) - 1
        return self._bricks[turn] if turn >= 0 else _OUTSIDE

    def worked(self) -> dict[int, int]:
        """How many operations were made in each, without those of the modules inside it."""
        counts: dict[int, int] = {}
        for brick, begin, end in zip(self._bricks, self._numbers, self._numbers[1:], strict=False):
            counts[brick] = counts.get(brick, 0) + end - begin
        return counts

    def enter(self, brick: int) -> None:
        self._open.append(brick)
        self._turn(brick)

    def leave(self, brick: int) -> None:
        if not self._open and not self._inside:
            self._began_in(brick)
        elif not self._open or self._open.pop() != brick:
            self.whole = False  # an error came out of a call
            return
        self._turn(self._open[-1] if self._open else _OUTSIDE)

    def _began_in(self, brick: int) -> None:
        """A step may begin with the call of a model: what came before its end was inside of it."""
        self._inside = True
        self._numbers.insert(0, self._begun)
        self._bricks = [brick, *(brick if each == _OUTSIDE else each for each in self._bricks)]

    def elsewhere(self) -> bool:
        return not self.whole or threading.get_ident() != self._thread

    def _turn(self, brick: int) -> None:
        if _next_number is None or len(self._numbers) >= _MOST_TURNS:
            self.whole = False
            return
        self._numbers.append(_next_number())
        self._bricks.append(brick)


class _Post:
    """The two hooks of one module."""

    __slots__ = ("_number", "_session", "_trail")

    def __init__(self, session: Session, trail: _Trail, number: int) -> None:
        self._session = session
        self._trail = trail
        self._number = number

    def before(self, _module: Any, _args: Any) -> None:
        trail = self._trail
        if not _compiling() and not self._session.in_backward and not trail.elsewhere():
            start = _counter()
            trail.enter(self._number)
            trail.spent += _counter() - start

    def after(self, _module: Any, _args: Any, _output: Any) -> None:
        trail = self._trail
        if not _compiling() and not self._session.in_backward and not trail.elsewhere():
            start = _counter()
            trail.leave(self._number)
            trail.spent += _counter() - start


class Places:
    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name
        self._bricks: list[Brick] = []
        self._classes: list[type[nn.Module]] = []
        self._numbers: dict[Brick, int] = {}
        self._worked: dict[int, int] = {}
        """How many operations each made in the forward that was last watched."""
        self._maps: list[Map] = []
        self._handles: list[Any] = []
        self._trail: _Trail | None = None
        self._losses = 0
        self._due = 0

    # -- one step of looking

    def watch(self) -> None:
        """Hooks every module until the end of this step, if a look is due."""
        session = self._session
        if self._handles or _next_number is None or session.step < self._due or not session.on.full or hands_off():
            return
        start = _counter()
        self._losses = 0
        trail = self._trail = _Trail(session.thread)
        self._due = max(2 * session.step, 1)
        for model in session.models:
            modules = list(_modules(model))
            for path, module in modules if len(modules) <= _MOST_MODULES else ():
                self._hook(module, Brick(Kind.BLOCK, path, model.name), trail)
        session.spend("full", _counter() - start)

    def again(self) -> None:
        """The models are others now."""
        self.release()
        self._due = self._session.step
        self.watch()

    def release(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._pay()
        self._trail = None

    def _pay(self) -> None:
        """For what the hooks did since the last time."""
        trail = self._trail
        if trail is not None and trail.spent:
            spent, trail.spent = trail.spent, 0
            self._session.charge(self._name, spent)
            self._session.spend("full", spent)

    def _hook(self, module: nn.Module, brick: Brick, trail: _Trail) -> None:
        session = self._session
        number = self._numbers.setdefault(brick, len(self._bricks))
        if number == len(self._bricks):
            self._bricks.append(brick)
            self._classes.append(type(module))

        post = _Post(session, trail, number)
        self._handles += around(module, post.before, post.after, first=True)

    def learn(self, loss: torch.Tensor) -> None:
        """Keeps where the operations behind ``loss`` stand, if its forward was watched."""
        trail = self._trail
        self._pay()
        if trail is None or not trail.usable or self._losses >= _MOST_LOSSES:
            return
        start = _counter()
        self._losses += 1
        self._due = max(_APART * self._session.step, 1)
        last = _number(loss.grad_fn)
        nodes = graph.nodes(loss)
        made = {last - node.order: Place(node.name, trail.of(node.order)) for node in nodes if node.order <= last}
        others = [known for known in self._maps if _ops(known, last) != _ops(made, last)]
        self._maps = [made, *others][:_MOST_MAPS]
        self._worked = trail.worked()
        self._session.spend("full", _counter() - start)

    # -- later

    def find(self, root: Any, nodes: list[graph.Node], function: Any) -> Brick | None:
        """The innermost module that made ``function``, one of ``nodes`` behind ``root``; None outside of all."""
        last = _number(root)
        distance = last - _number(function)
        if distance < 0:
            return None
        seen = {last - node.order: node.name for node in nodes if 0 <= last - node.order <= distance}
        for known in self._maps:
            place = known.get(distance)
            if place is not None and _ops(known, distance) == seen:
                return self._bricks[place.brick] if place.brick != _OUTSIDE else None
        return None

    def first_like(self, brick: Brick) -> Brick:
        """Of modules of one class that stand at the same place of their layers and do about as much, the first."""
        number = self._numbers[brick]
        kind, place, most = self._classes[number], _layered(brick)[0], self._worked.get(number, 0)
        alike = [
            each
            for at, each in enumerate(self._bricks)
            if each.model == brick.model and self._classes[at] is kind and _layered(each)[0] == place
            and self._worked.get(at, 0) >= _ALIKE * most
        ]  # fmt: skip
        return min(alike, key=lambda each: _layered(each)[1], default=brick)


def _layered(brick: Brick) -> tuple[str, tuple[int, ...]]:
    """A path without its numbers, and the numbers: ("blocks.#.rope", (3,))."""
    parts = brick.path.split(".")
    numbers = tuple(int(part) for part in parts if part.isdecimal())
    return ".".join("#" if part.isdecimal() else part for part in parts), numbers


def _ops(known: Map, farthest: int) -> dict[int, str]:
    return {distance: place.op for distance, place in known.items() if distance <= farthest}


def _number(function: Any) -> int:
    number = int(function._sequence_nr()) if hasattr(function, "_sequence_nr") else _LATE
    return min(number, _LATE)


def _modules(model: models.Model) -> Iterator[tuple[str, nn.Module]]:
    """Every module whose calls are made by Python code, with its path."""
    root = model.root()
    if root is None or next(root.parameters(), None) is None:
        return
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
            continue
        seen.add(id(module))
        yield model.path(path), module
        if not models.compiled(module):
            waiting += [(f"{path}.{name}".lstrip("."), child) for name, child in module.named_children()]
