"""What happens in every step and is only counted: too cheap to skip, too frequent to send.

Enters: gradients that are cleared, updates, rates that are scheduled. Leaves: how often, for probes that look now and
then. One object with slots: code that runs once a step is in no cache, and a name of a module is three times as far.
"""

from __future__ import annotations

from collections import defaultdict


class Tally:
    __slots__ = ("clears", "scheduled", "updated", "zeroed")

    def __init__(self) -> None:
        self.zeroed = 0
        """How often gradients were cleared in this process, by anybody."""
        self.clears: defaultdict[int, int] = defaultdict(int)
        """The same by the id of an optimizer or module."""
        self.updated: dict[int, int] = {}
        """By the id of an optimizer: how often it had cleared them when it last made an update."""
        self.scheduled = 0

    def passed(self, optimizer: int, before: int, zeroed: int) -> None:
        """Updates were made by it that nobody counted: the first after it had cleared gradients ``before`` times, the
        last when ``zeroed`` was what it was."""
        count = self.clears[optimizer]
        self.updated[optimizer] = count - min(self.zeroed - zeroed, count - before)


tally = Tally()
