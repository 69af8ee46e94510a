"""Functions and methods of torch that are replaced for a while, all at once, and put back as they were.

Enters: what to replace, and by what. Leaves: torch as it was found, also where somebody else has replaced the same
thing before or meanwhile. Python looks methods up in a cache that every change of a class empties, and a class has a
limited number of those: nothing is looked up between two changes.

A tensor of a class of its own, or a function mode, is told which function it is asked for: torch looks that up when it
is called, and finds the stand-in. So a stand-in of a tensor's method equals it: ``func in {torch.Tensor.to}`` is true
of a set that was made before, and ``func is torch.Tensor.to`` of what is looked up now.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, NamedTuple

import torch

_NONE: Any = object()
Make = Callable[[Any, str], Any]
"""Of an original and its name: what stands in for it."""


class _Piece(NamedTuple):
    owner: Any
    name: str
    found: Any
    """What the owner itself held; nothing where it inherits."""
    stand_in: Any


class Swap:
    def __init__(self, plan: Iterable[tuple[Any, Iterable[str], Make]]) -> None:
        self._plan = [(owner, name, make) for owner, names, make in plan for name in names if hasattr(owner, name)]
        self._pieces: list[_Piece] = []
        self.on = False

    def put(self) -> None:
        """Replaces everything."""
        if self.on:
            return
        self.on = True
        _put.add(self)
        if not self._pieces:
            self._pieces = [_piece(*each) for each in self._plan]
        for place, piece in enumerate(self._pieces):
            if vars(piece.owner).get(piece.name, _NONE) is not piece.found:
                piece = self._pieces[place] = _piece(*self._plan[place])
            setattr(piece.owner, piece.name, piece.stand_in)

    def back(self) -> None:
        """Puts everything back; what somebody else has put over ours stays, and goes on through ours."""
        if not self.on:
            return
        self.on = False
        _put.discard(self)
        for piece in self._pieces:
            if vars(piece.owner).get(piece.name) is not piece.stand_in:
                continue
            if piece.found is _NONE:
                delattr(piece.owner, piece.name)
            else:
                setattr(piece.owner, piece.name, piece.found)


_put: weakref.WeakSet[Swap] = weakref.WeakSet()


def _after_fork() -> None:
    """A child, a loader's worker say, is none of ours, and has torch as it is."""
    for swap in list(_put):
        swap.back()


os.register_at_fork(after_in_child=_after_fork)


def _piece(owner: Any, name: str, make: Make) -> _Piece:
    original = getattr(owner, name)
    stand_in = make(original, name)
    for attribute in ("__name__", "__qualname__", "__doc__"):
        if hasattr(original, attribute):
            setattr(stand_in, attribute, getattr(original, attribute))
    if owner is torch.Tensor:
        stand_in = Like(stand_in, original)
    return _Piece(owner, name, vars(owner).get(name, _NONE), stand_in)


class Like:
    """A method of a tensor that does what ``call`` does, and equals ``original``."""

    def __init__(self, call: Any, original: Any) -> None:
        functools.update_wrapper(self, call)
        self._call = call
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, tensor: Any, _kind: Any = None) -> Any:
        return self if tensor is None else MethodType(self, tensor)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self._original == other)

    def __hash__(self) -> int:
        return hash(self._original)
