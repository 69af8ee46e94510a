"""Functions and methods of torch that are replaced for a while, all at once, and put back as they were.

Enters: what to replace, and by what. Leaves: torch as it was found, also where somebody else has replaced the same
thing before or meanwhile. Python looks methods up in a cache that every change of a class empties, and a class has a
limited number of those: nothing is looked up between two changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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
        for piece in self._pieces:
            if vars(piece.owner).get(piece.name) is not piece.stand_in:
                continue
            if piece.found is _NONE:
                delattr(piece.owner, piece.name)
            else:
                setattr(piece.owner, piece.name, piece.found)


def _piece(owner: Any, name: str, make: Make) -> _Piece:
    original = getattr(owner, name)
    stand_in = make(original, name)
    for attribute in ("__name__", "__qualname__", "__doc__"):
        if hasattr(original, attribute):
            setattr(stand_in, attribute, getattr(original, attribute))
    return _Piece(owner, name, vars(owner).get(name, _NONE), stand_in)
