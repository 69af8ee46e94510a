"""Updates that no optimizer makes: weights written to between two backwards, as in a lesson or a paper's own method.

Enters: the moment after a backward (``mark``) and moments at which a next step may have begun (``updated``). Leaves:
whether somebody wrote to the weights in between, or cleared their gradients.
"""

from __future__ import annotations

from typing import Any

from brickprof.capture.book import Book
from brickprof.capture.steps import StepClock
from brickprof.capture.tensors import local, on_host, strided

_LONG_ACCUMULATION = 8
_LOOKED_AT = 4


class ByHand:
    def __init__(self, book: Book, steps: StepClock) -> None:
        self._book = book
        self._steps = steps
        self._state: tuple[Any, ...] = ()
        self._marked_in = -1
        """The step of that moment: what came between two steps was the next one's beginning."""

    def mark(self) -> None:
        """A backward is over: remembers the weights as they are."""
        if not self._optimizer_in_charge():
            self._state, self._marked_in = self._fingerprint(), self._steps.number

    def updated(self) -> bool:
        """Whether a step ended because somebody changed the weights."""
        if self._optimizer_in_charge() or not self._state or self._marked_in != self._steps.number:
            return False
        if self._fingerprint() == self._state:
            return False
        self._state = ()
        self._steps.weights_changed()
        return self._steps.manual_turn()

    def _optimizer_in_charge(self) -> bool:
        """Many backwards without an optimizer: somebody accumulates, or has gone over to updates by hand."""
        return self._steps.updates_by_optimizer and self._steps.backwards < _LONG_ACCUMULATION

    def _fingerprint(self) -> tuple[Any, ...]:
        """Enough of a few parameters to see whether somebody wrote to them or cleared their gradients."""
        marks: list[Any] = []
        for parameter in self._book.trainable()[:_LOOKED_AT]:
            grad = parameter.grad
            marks.append((parameter._version, id(grad), None if grad is None else grad._version))
            if on_host(parameter):  # this rank's values only: reading a sharded whole is a collective
                marks.append(strided(local(parameter), 8).tolist())
            else:
                marks.append(self._steps.total_backwards)
        return tuple(map(str, marks))
