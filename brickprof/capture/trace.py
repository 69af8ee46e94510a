"""The nest of open bricks of one process.

Enters: bricks opening and closing. Leaves: span rows in the journal (when the step's spans are wanted) and
the pulse, which always knows what is open, so that a kill or a hang can be placed.

A closing brick also closes what was left open above it: a forward that raised, or a recompute that
torch's checkpointing stopped half-way, never reaches its own end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brickprof import pulse as pulses
from brickprof.clock import now
from brickprof.records import PHASES

if TYPE_CHECKING:
    from brickprof.journal import Journal

PHASE = {name: number for number, name in enumerate(PHASES)}
_SHOWN = {
    PHASE[name]: pulses.PHASES.index(shown)
    for name, shown in (
        ("forward", "forward"), ("eval", "forward"), ("recompute", "backward"), ("backward", "backward"),
        ("optimizer", "optimizer"), ("loader", "loader"), ("step", "step"), ("user", "user"),
    )
}  # fmt: skip

Open = tuple[int, int, int, int]  # id, brick, phase, start


class Trace:
    __slots__ = ("_journal", "_marks", "_next", "_open", "micro", "pulse", "step", "step_id")

    def __init__(self, journal: Journal, pulse: pulses.Pulse) -> None:
        self._journal = journal
        self.pulse = pulse
        self._next = 1
        self._open: list[Open] = []
        self._marks: list[tuple[int, int]] = []
        self.step = 0
        self.step_id = 0
        self.micro = 0

    def new_id(self) -> int:
        number = self._next
        self._next += 1
        return number

    def open(self, brick: int, phase: int) -> int:
        """Opens a brick; returns the id to close it with."""
        number = self._next
        self._next = number + 1
        self._open.append((number, brick, phase, now()))
        self.pulse.enter(brick, _SHOWN.get(phase, 0))
        return number

    def close(self, number: int, *, write: bool, attributes: str | None = None) -> int:
        """Closes brick ``number`` and all that is open above it; returns its duration."""
        stack = self._open
        end = now()
        if not any(opened[0] == number for opened in stack):
            return 0  # closed already, with what it was nested in
        while stack:
            opened = stack.pop()
            self.pulse.leave(_SHOWN.get(stack[-1][2], 0) if stack else 0)
            if opened[0] == number:
                self.pulse.beat(end)
                if write:
                    parent = stack[-1][0] if stack else self.step_id
                    self._journal.span(
                        (number, parent, opened[1], opened[2], self.step, self.micro, opened[3], end,
                         None, None, attributes)
                    )  # fmt: skip
                return end - opened[3]
        return 0

    def innermost(self) -> int:
        """The brick that is open deepest; 0 when none is."""
        return self._open[-1][1] if self._open else 0

    def phase(self) -> int:
        """The phase of what is open deepest; the user's own when nothing is."""
        return self._open[-1][2] if self._open else PHASE["user"]

    def parent(self) -> int:
        return self._open[-1][0] if self._open else self.step_id

    def mark(self, brick: int) -> None:
        """The backward of ``brick`` begins; it lasts until the next mark or the end of the backward."""
        self._marks.append((brick, now()))
        self.pulse.mark(brick)

    def close_marks(self, parent: int, *, write: bool) -> None:
        marks, self._marks = self._marks, []
        if not write or not marks:
            return
        end = now()
        phase = PHASE["backward"]
        for (brick, start), following in zip(marks, [*(t for _, t in marks[1:]), end], strict=True):
            self._journal.span(
                (self.new_id(), parent, brick, phase, self.step, self.micro, start, following, None, None, None)
            )

    def reset(self) -> None:
        """Forgets what is open: a step begins, and whatever failed to close never will.

        The user's own bricks stay: an epoch or an evaluation may span many steps.
        """
        kept = [opened for opened in self._open if opened[2] == PHASE["user"]]
        self._open[:] = kept
        self.pulse.depth = 0
        for _, brick, phase, _ in kept:
            self.pulse.enter(brick, _SHOWN[phase])
