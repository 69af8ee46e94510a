"""What code that runs in every step has at hand: the state it asks for, and what it only counts.

Enters: gradients that are cleared, updates, rates that are scheduled; from the hub, whether anybody looks. Leaves: how
often, for probes that look now and then. One object with slots: code that runs once a step is in no cache, and a name
of a module is three times as far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brickprof.capture.stretch import Stretch


class Desk:
    __slots__ = (
        "_clears", "_since", "listening", "lists_wanted", "owed", "owner", "scheduled", "stretch", "takes_norms",
        "updated", "zeroed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.stretch: Stretch | None = None
        """Steps that nobody looks at, under way: their signals are noted and not sent."""
        self.listening = False
        """Whether any session looks at this step; where not, only the signals that move the step are sent."""
        self.takes_norms = False
        """Whether a session wants to know the norms that a clip computes."""
        self.zeroed = 0
        """How often gradients were cleared in this process, by anybody."""
        self.owner = self._since = 0
        """The id of the optimizer or module that cleared them last, and how often anybody else has."""
        self._clears: dict[int, int] = {}
        """How often each of the others has, by its id."""
        self.updated: dict[int, int] = {}
        """By the id of an optimizer: how often it had cleared them when it last made an update."""
        self.scheduled = 0
        self.lists_wanted: Callable[[], None] | None = None
        """Called when somebody wants to be told the lists that updates go by: nothing catches them before."""
        self.owed = 0
        """The id of an optimizer whose gradients were to be told in the update under way, and nobody waits any more."""

    def clear(self, owner: int) -> None:
        """``owner`` has cleared gradients, whoever was told of them."""
        self.zeroed += 1
        if self.owner != owner:
            self.cleared(owner)
        if self.stretch is not None and self.stretch.caught:
            self.stretch.caught = ()  # an update has broken off

    def cleared(self, owner: int) -> None:
        """It was ``owner`` that has cleared them just now, and another before."""
        self._clears[self.owner] = self.zeroed - 1 - self._since
        self.owner, self._since = owner, self.zeroed - 1 - self._clears.get(owner, 0)

    def clears(self, owner: int) -> int:
        """How often ``owner`` has cleared gradients. Where two threads do at the very same time, one may get the
        other's."""
        return self.zeroed - self._since if owner == self.owner else self._clears.get(owner, 0)

    def passed(self, optimizer: int, before: int, zeroed: int) -> None:
        """Updates were made by it that nobody counted: the first after it had cleared gradients ``before`` times, the
        last when ``zeroed`` was what it was."""
        count = self.clears(optimizer)
        self.updated[optimizer] = count - min(self.zeroed - zeroed, count - before)


desk = Desk()
