"""Kernel bricks of any script: now and then a step is looked at through torch's own profiler.

Enters: steps on a CUDA device, few of them: the first as soon as it is not more than the budget of the run so far, and
then so many that all windows together cost a small part of it; at once when somebody asked for a step (``--deep-at``)
or for level deep. Leaves: a kernel span for every kernel of the step, inside the block that launched it, a transfer
span for every copy, and a ``window`` event: how many there were, what they took, how much of the step the device was
busy. Of a step that has more than can be written, copies, the longest kernels and every so many of the others have
spans, and the event has the sums of the rest. What brickprof itself launched meanwhile is left out.

Where the profiler would stay attached to the device, and beside graphs of it (see ``taps.kineto``), there are only
those that somebody asked for.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from brickprof.bricks import Brick, Kind
from brickprof.capture.probe import Probe
from brickprof.capture.session import Session
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps.kineto import Ran, Window, in_use, restore, ways
from brickprof.capture.trace import PHASE
from brickprof.records import PHASES

_EXPECTED_S = 0.15
"""What the first window is taken to cost: the profiler has to be loaded."""
_FIRST_SHARE, _SHARE = 1.0, 0.1
"""Of the budget of the run so far: the first window, and all of them."""
_SETTLED = {"standard": 20, "deep": 3}
"""The first steps compile and allocate; a window on them would show that."""
_DEEP = 0.05
"""Of the time, at level deep, which has no budget."""
_STEPS = 2
"""That a window lasts: the one that is wanted, and one in which the device comes to the end of it."""
_LETS_GO_WITHIN = 4
"""Steps behind a window in which the profiler lets go of the device."""
_MOST_ROWS = 4096
_MOST_SUMS = 1024
_MOST_NAMES = 24
_MOST_LAUNCHED, _MOST_PLACES = 3, 8
_DIRECTIONS = {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D", "PtoP": "D2D"}
Placed = tuple[int, int, int, int, int]  # start, end, id, phase, brick
Sums = dict[tuple[int, int, int], list[int]]
"""By kernel, by the brick that launched it, and by phase: how many, and their nanoseconds."""


class WindowsProbe(Probe):
    name = "windows"
    levels = ("standard", "deep")
    ways = ("spans",)
    every_step = ("step_begin",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._window: Window | None = None
        self._step = -1
        self._spans: list[tuple[Any, ...]] = []
        self._looks: list[tuple[int, int]] = []
        self._began = time.monotonic()
        self._first: int | None = None
        self._spent = 0.0
        self._cost, self._costs = _EXPECTED_S, 0.0
        """What a window costs, and what the one that is open has cost so far."""
        self._opened = (0.0, 0)
        """When, and what the session had spent by then."""
        self._closing = self._began
        """When the last was closed."""
        self._off = self._told = self._asked = False
        self._closed = self._seen = 0
        self._until = 0
        """The step in which the environment is put back after a window; 0 where it is as it was."""

    def step_begin(self, step: int) -> None:
        if self._window is not None:
            if step >= self._step + _STEPS:
                self._close()
                self._until = step + _LETS_GO_WITHIN
            else:
                self.session.trace.kept = self.session.looks = None
            return
        if self._until and step >= self._until:
            self._until = 0
            restore()
        way = self._wanted(step)
        if way is not None:
            self._open(step, leaves=way)

    def _wanted(self, step: int) -> bool | None:
        """None where no window is wanted; else whether the profiler is to let go of the device after it."""
        session = self.session
        if self._off or not session.on.spans or not torch.cuda.is_initialized() or hands_off() or in_use():
            return None
        level, budget = session.settings.level, session.cadence.budget
        share, asked = (_SHARE if self._seen else _FIRST_SHARE) * budget, step in session.cadence.planned
        if asked:
            due = not self._asked or self._affordable(share, step)
        elif step < _SETTLED[level]:
            due = False
        elif level == "deep":
            due = self._spent == 0 or self._affordable(_DEEP, step)
        else:
            due = self._affordable(share, step)
        return self._way(asked=asked or level == "deep") if due else None

    def _affordable(self, share: float, step: int) -> bool:
        """Whether another one is within ``share`` of the time so far. Of the steps', where there is a budget: a script
        that waits for something else meanwhile gets no more for it."""
        lasted = time.monotonic() - self._began
        if self.session.settings.level != "deep":
            self._first = step if self._first is None else self._first
            lasted = min(lasted, (step - self._first) * self.session.cadence.typical_ns / 1e9)
        return self._spent + self._cost <= share * lasted

    def _way(self, *, asked: bool) -> bool | None:
        """Where nobody ``asked``, nothing stays behind that would slow down every launch from then on. At level deep,
        where windows follow soon upon each other, the profiler stays."""
        found = ways()
        if found.leaves and self.session.settings.level != "deep":
            return True
        if asked and found.stays:
            return False
        if not self._told:
            self._told = True
            reason = (
                "every launch would take a third longer once the profiler was used, for it cannot be taken down here "
                "(CUDA graphs, a CUDA before 12.6, or TEARDOWN_CUPTI=0)"
            )
            instead = "kernels of Triton alone" + ("" if asked or not found.stays else " (or --deep-at STEP)")
            self.session.fact("fallback", {"operation": "windows", "reason": reason, "instead": instead}, always=True)
        return None

    def _open(self, step: int, *, leaves: bool) -> None:
        start, window = time.monotonic(), Window(leaves=leaves)
        try:
            opened = window.begin()
        except Exception:
            self._off = True
            raise
        if opened:
            self._costs = 0.0
            opened_at = time.monotonic()
            self._pay(opened_at - start)
            # The session books the time of this signal when it is over.
            self._opened = (opened_at, self.session.spent + int((opened_at - start) * 1e9))
            self._asked |= step in self.session.cadence.planned
            self._window, self._step = window, step
            self._look_at_nothing_else()
            self._spans = self.session.trace.kept = []
            self._looks = self.session.looks = []
            self.session.cadence.attend(step + _STEPS)  # so that the end of the window is not slept through

    def _look_at_nothing_else(self) -> None:
        """What other looks launch would stand among the script's own kernels."""
        session = self.session
        session.on = replace(session.on, full=False, guard=False, blocks=False, deep=False)
        session.dispatch.begin(session.on)

    def _close(self, *, last: bool = False) -> None:
        start, window = time.monotonic(), self._window
        self._closing = start
        self._window = self.session.trace.kept = self.session.looks = None
        slowed = 0.0 if last else self._slowed(start)
        if slowed:
            self._pay(slowed, booked=False)
        whole = next((span for span in self._spans if span[3] == PHASE["step"]), None)
        within = (whole[6], whole[7]) if whole is not None else None
        ran = window.end(within, last=last) if window is not None else []
        if ran and whole is not None:  # or somebody else has taken the profiler
            self._write(ran, whole)
        self._pay(time.monotonic() - start, booked=not last)
        self._cost = max(self._costs, 0.01)
        self._closed += 1
        if ran or self._closed > 1:  # the first, behind a profiler of the script's, may have seen nothing
            self._seen += 1

    def _slowed(self, now: float) -> float:
        """How much longer the steps of the window took than others, beside what the session has booked: launches that
        the profiler sees are slower. No more than one step: the script may have done something of its own in them."""
        if self.session.settings.level == "deep" or self._step in self.session.cadence.planned:
            return 0.0
        since, spent = self._opened
        typical = self.session.cadence.typical_ns / 1e9
        took = now - since - (self.session.spent - spent) / 1e9
        return min(max(took - _STEPS * typical, 0.0), typical)

    def _pay(self, spent: float, *, booked: bool = True) -> None:
        """``booked``: the session takes the time itself."""
        self._spent += spent
        self._costs += spent
        if not self._closed and self.session.settings.level != "deep":
            # Once in a run: no measure of what follows.
            if booked:
                self.session.correct(-int(spent * 1e9))
            self.session.charge_start(int(spent * 1e9))
        elif not booked:
            self.session.correct(int(spent * 1e9))

    def close(self) -> None:
        if self._window is not None:
            self._close(last=True)
        restore()

    # -- what ran

    def _write(self, ran: list[Ran], whole: tuple[Any, ...]) -> None:
        looks = Looks(self._looks)
        inside = [each for each in ran if not looks.cover(each.launched_ns)]
        places = Places([(span[6], span[7], span[0], span[3], span[2]) for span in self._spans])
        bricks = {name: self._brick(name) for name in dict.fromkeys(each.name for each in inside)}
        written, unwritten = chosen(inside), Sums()
        for at, each in enumerate(inside):
            parent, phase, block = places.around(each.launched_ns, default=(whole[0], whole[3], whole[2]))
            # The phase of a step is the step's alone: what no block launched was launched by the script itself.
            phase = PHASE["user"] if parent == whole[0] else phase
            if at in written:
                self._row(each, bricks[each.name], parent, phase)
            else:
                sums = unwritten.setdefault((bricks[each.name][0], block, phase), [0, 0])
                sums[0], sums[1] = sums[0] + 1, sums[1] + each.device_ns
        self._summary(inside, places, whole[7] - whole[6], left_out=len(ran) - len(inside), unwritten=unwritten)

    def _brick(self, name: str) -> tuple[int, str]:
        """Its number, and what is to be told of it."""
        direction = _direction(name)
        brick = Brick(Kind.TRANSFER, direction) if direction else Brick(Kind.KERNEL, name[:200])
        return self.session.journal.brick(brick), f',"how":{json.dumps(name[:80])}' if direction else ""

    def _row(self, ran: Ran, brick: tuple[int, str], parent: int, phase: int) -> None:
        session, (number, how) = self.session, brick
        size = f',"bytes":{ran.bytes}' if ran.bytes else ""
        told = f'{{"device_start_ns":{ran.start_ns},"source":"profiler"{size}{how}}}'
        session.journal.span(
            (session.trace.new_id(), parent, number, phase, self._step, 0, ran.launched_ns, ran.launched_ns,
             ran.device_ns, ran.stream, told)
        )  # fmt: skip

    def _summary(self, ran: list[Ran], places: Places, step_ns: int, left_out: int, unwritten: Sums) -> None:
        counts, times = Counter(each.name for each in ran), Counter[str]()
        for each in ran:
            times[each.name] += each.device_ns
        copies = {name for name in counts if _direction(name)}
        kernels = [each.device_ns for each in ran if each.name not in copies]
        fields = {
            "kernels": len(ran),
            "written": len(ran) - sum(many for many, _ in unwritten.values()),
            "left_out": left_out,
            "busy_ns": busy(ran),
            "step_ns": step_ns,
            "median_ns": int(median(kernels)) if kernels else 0,
            "names": [[name[:200], counts[name], total] for name, total in times.most_common(_MOST_NAMES)],
            "most_launched": [
                [name[:200], count, "", places.of([each for each in ran if each.name == name])]
                for name, count in counts.most_common(_MOST_LAUNCHED)
            ],
            "cost_ms": round((self._spent + time.monotonic() - self._closing) * 1e3, 1),
        }
        if unwritten:
            fields["unwritten"] = summed(unwritten)
        self.session.fact("window", fields, step=self._step, always=True)


def _direction(name: str) -> str:
    """Of a copy; nothing of what is none."""
    return next((short for text, short in _DIRECTIONS.items() if f"Memcpy {text}" in name), "")


def chosen(ran: list[Ran], most: int = _MOST_ROWS) -> set[int]:
    """The places of those that become spans: where not all can, copies and the longest to one half, and of the others
    every so many, so that no part of the step is without any."""
    if len(ran) <= most:
        return set(range(len(ran)))
    copies = {name for name in {each.name for each in ran} if _direction(name)}
    dearest = sorted(range(len(ran)), key=lambda at: (ran[at].name not in copies, -ran[at].device_ns))
    first, others = dearest[: most // 2], sorted(dearest[most // 2 :])
    rest = most - len(first)
    return {*first, *(others[at * len(others) // rest] for at in range(rest))}


def summed(sums: Sums) -> list[list[Any]]:
    """The kernel, the brick that launched it, the phase, how many, nanoseconds. Where these are very many, the
    smallest are summed by kernel alone, as those of brick 0."""
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    small = Sums()
    for (kernel, _, _), (many, ns) in ordered[_MOST_SUMS:]:
        found = small.setdefault((kernel, 0, PHASE["user"]), [0, 0])
        found[0], found[1] = found[0] + many, found[1] + ns
    told = [*ordered[:_MOST_SUMS], *small.items()]
    return [[kernel, brick, PHASES[phase], many, ns] for (kernel, brick, phase), (many, ns) in told]


class Looks:
    """When brickprof itself was at work, as the session booked it. Signals may be sent out of others: their times lie
    in each other."""

    def __init__(self, looks: list[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(looks):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def cover(self, moment: int) -> bool:
        at = bisect_right(self._starts, moment)
        return at > 0 and moment < self._ends[at - 1]


class Places:
    """Which span a moment of the host lies in, the innermost one."""

    def __init__(self, spans: list[Placed]) -> None:
        self._spans = sorted(spans, key=lambda span: (span[0], -span[1]))
        self._starts = [span[0] for span in self._spans]
        self._outer: list[int] = []
        """The place of the last before each that ends later; -1 where none does."""
        for at, (_, end, *_) in enumerate(self._spans):
            outer = at - 1
            while outer >= 0 and self._spans[outer][1] <= end:
                outer = self._outer[outer]
            self._outer.append(outer)

    def around(self, moment: int, *, default: tuple[int, int, int]) -> tuple[int, int, int]:
        """Its id, its phase and its brick."""
        at = bisect_right(self._starts, moment) - 1
        while at >= 0:
            _, end, number, phase, brick = self._spans[at]
            if moment < end:
                return number, phase, brick
            at = self._outer[at]
        return default

    def of(self, ran: list[Ran]) -> list[list[int]]:
        """The bricks that launched these, with how many: those with most first, and of equal ones the earlier."""
        counts = Counter(self.around(each.launched_ns, default=(0, 0, 0))[2] for each in ran)
        return [[brick, times] for brick, times in counts.most_common(_MOST_PLACES) if brick]


def busy(ran: list[Ran]) -> int:
    """How long the device did anything at all, on any stream."""
    total, reached = 0, 0
    for each in sorted(ran, key=lambda one: one.start_ns):
        begin, end = max(each.start_ns, reached), each.start_ns + each.device_ns
        total += max(end - begin, 0)
        reached = max(reached, end)
    return total
