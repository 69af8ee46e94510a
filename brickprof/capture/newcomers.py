"""Optimizers that join a training under way: whom of the others does their first update come with?

Enters: optimizers that are built once updates have been made, losses that are differentiated, first updates. Leaves: in
the step clock, with whom the round of that first update is whole.

A second training in the same process (a fold, a trial, a resume) leaves the optimizer of the first behind: gone, alive
in somebody's list, or in a cycle that nobody has collected yet. A round that waited for it would take the next batch's
loss for its own. So those are left out that are gone, all of whose parameters the new one has taken over, or that no
backward has reached since. Told from a loss's graph, for a few backwards and not for longer: more
micro-batches than that are like the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from brickprof.capture.book import owned
from brickprof.capture.models import leaves

if TYPE_CHECKING:
    from brickprof.capture.book import Book
    from brickprof.capture.steps import StepClock

_MOST_BACKWARDS = 8


class Newcomers:
    def __init__(self, book: Book, steps: StepClock) -> None:
        self._book = book
        self._steps = steps
        self._reached: set[int] = set()
        """The ids of the parameters that were differentiated since."""
        self._left = 0
        self.awaited = False
        """Whether the next backward is to be followed."""

    def built(self) -> None:
        if self._steps.joining:
            self._left, self.awaited = _MOST_BACKWARDS, True

    def backward(self, losses: Sequence[torch.Tensor]) -> None:
        self._left -= 1
        self.awaited = self._left > 0
        self._reached.update(id(leaf) for loss in losses for leaf in leaves(loss))

    def updates(self, optimizer: Any, number: int) -> None:
        """Its first update is made."""
        others = self._steps.awaited_by(number)
        alive = {self._book.optimizer(each): each for each in self._book.optimizers()}
        mine = set(map(id, owned(optimizer)))
        known = bool(mine & self._reached)
        self._steps.joined({each for each in others if self._is_out(alive.get(each), mine, known)})
        self._reached.clear()
        self.awaited = False

    def _is_out(self, other: Any, mine: set[int], known: bool) -> bool:
        if other is None:
            return True
        theirs = set(map(id, owned(other)))
        return theirs <= mine or (known and not theirs & self._reached)
