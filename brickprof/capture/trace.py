"""The nest of open bricks of one process.

Enters: bricks opening and closing. Leaves: span rows in the journal (when the step's spans are wanted; with the
device's time where there is a device) and the pulse, which always knows what is open, so that a kill or a hang can be
placed.

A closing brick also closes what was left open above it: a forward that raised, or a recompute that
torch's checkpointing stopped half-way, never reaches its own end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof import pulse as pulses
from brickprof.clock import now
from brickprof.records import PHASES

if TYPE_CHECKING:
    from brickprof.capture.device_clock import DeviceClock, Mark
    from brickprof.capture.ranges import Ranges
    from brickprof.journal import Journal

PHASE = {name: number for number, name in enumerate(PHASES)}
_SHOWN = {
    PHASE[name]: pulses.PHASES.index(shown)
    for name, shown in (
        ("forward", "forward"), ("eval", "forward"), ("recompute", "backward"), ("backward", "backward"),
        ("optimizer", "optimizer"), ("loader", "loader"), ("step", "step"), ("user", "user"),
    )
}  # fmt: skip

Open = tuple[int, int, int, int, "Mark | None"]  # id, brick, phase, start, and where on the device


class Trace:
    __slots__ = ("_journal", "_marks", "_next", "_open", "clock", "kept", "micro", "pulse", "ranges", "step", "step_id")

    def __init__(self, journal: Journal, pulse: pulses.Pulse, clock: DeviceClock) -> None:
        self._journal = journal
        self.pulse = pulse
        self.clock = clock
        self.ranges: Ranges | None = None
        """The same nest for Nsight, where somebody looks."""
        self.kept: list[tuple[Any, ...]] | None = None
        """Rows as they are written, while somebody wants to know what surrounds what."""
        self._next = 1
        self._open: list[Open] = []
        self._marks: list[tuple[int, int, Mark | None]] = []
        self.step = 0
        self.step_id = 0
        self.micro = 0

    def new_id(self) -> int:
        number = self._next
        self._next += 1
        return number

    def open(self, brick: int, phase: int, *, current: bool = False) -> int:
        """Opens a brick; returns the id to close it with. ``current``: it runs on the device that is current."""
        number = self._next
        self._next = number + 1
        start = now()
        mark = self.clock.mark(current=current) if self.clock.running else None
        self._open.append((number, brick, phase, start, mark))
        self.pulse.enter(brick, _SHOWN.get(phase, 0))
        if self.ranges is not None:
            self.ranges.push(brick, phase)
        return number

    def close(
        self, number: int, *, write: bool, attributes: str | None = None, kernel: bool = False, device: int = -1
    ) -> int:
        """Closes brick ``number`` and all that is open above it; returns its duration. ``kernel``: see ``write``;
        ``device``: where it is known to have run."""
        stack = self._open
        end = now()
        if not any(opened[0] == number for opened in stack):
            return 0  # closed already, with what it was nested in
        while stack:
            opened = stack.pop()
            self.pulse.leave(_SHOWN.get(stack[-1][2], 0) if stack else 0)
            if self.ranges is not None:
                self.ranges.pop(len(stack))
            if opened[0] == number:
                self.pulse.beat(end)
                if write:
                    parent = stack[-1][0] if stack else self.step_id
                    row = (number, parent, opened[1], opened[2], self.step, self.micro, opened[3], end,
                           None, None, attributes)  # fmt: skip
                    before = opened[4]
                    away = before is not None and 0 <= device != before.device
                    self.write(row, None if away else before, kernel=kernel)
                return end - opened[3]
        return 0

    def write(
        self, row: tuple[Any, ...], before: Mark | None, after: Mark | None = None, *, kernel: bool = False
    ) -> None:
        """A span that began at ``before`` on the device, if it was there, and ends ``after`` that, or now.

        A ``kernel`` surrounds nothing, and has no usual time: its shapes differ from launch to launch.
        """
        if self.kept is not None and not kernel:
            self.kept.append(row)
        if before is not None and after is None:
            after = self.clock.mark()
        if before is None or after is None:
            self._journal.span(row)
        else:
            self.clock.span(row, before, after, kernel=kernel)

    def innermost(self) -> int:
        """The brick that is open deepest; 0 when none is."""
        return self._open[-1][1] if self._open else 0

    def phase(self) -> int:
        """The phase of what is open deepest; the user's own when nothing is."""
        return self._open[-1][2] if self._open else PHASE["user"]

    def parent(self) -> int:
        return self._open[-1][0] if self._open else self.step_id

    def mark(self, brick: int, device: int = -1) -> None:
        """The backward of ``brick`` begins on ``device``; it lasts until the next mark or the end of the backward."""
        self._marks.append((brick, now(), self.clock.mark(device) if self.clock.running else None))
        self.pulse.mark(brick)
        if self.ranges is not None and self.step_id:
            self.ranges.mark(brick, PHASE["backward"])

    def close_marks(self, parent: int, *, write: bool) -> None:
        marks, self._marks = self._marks, []
        if self.ranges is not None:
            self.ranges.unmark()
        if not write or not marks:
            return
        end = (0, now(), self.clock.mark() if self.clock.running else None)
        phase = PHASE["backward"]
        for (brick, start, before), (_, following, after) in zip(marks, [*marks[1:], end], strict=True):
            row = (self.new_id(), parent, brick, phase, self.step, self.micro, start, following, None, None, None)
            self.write(row, before if after is not None else None, after)

    def step_over(self, *, last: bool = False) -> None:
        """A step whose bricks were traced has ended; with the ``last`` one so has everything."""
        if self.ranges is not None:
            self.ranges.end_all()
            if last:
                self.ranges.pop(0)

    def reset(self) -> None:
        """Forgets what is open: a step begins, and whatever failed to close never will.

        The user's own bricks stay: an epoch or an evaluation may span many steps.
        """
        kept = [(*opened[:4], None) for opened in self._open if opened[2] == PHASE["user"]]
        self._open[:] = kept
        self.pulse.depth = 0
        if self.ranges is not None:
            self.ranges.pop(0)
        for _, brick, phase, _, _ in kept:
            self.pulse.enter(brick, _SHOWN[phase])
            if self.ranges is not None:
                self.ranges.push(brick, phase)
