"""Bricks that take longer than somebody said they may, and by how much.

Enters: spans that carry a declared budget, and those inside them. Leaves: how a brick fares (its usual time, on the
device where that is known and else on the host), and the violation of C-BUDGET-001 for the one that is furthest over.
Budgets that were learned are no promise of anybody's: half of all times are above a median.

What brickprof did in a step is given to the credit of a brick as a whole, since where in the step that was is not
known; on the device only where it took statistics (``sampled``), since else it launches next to nothing. A brick of the
script's with none of the model's inside it is no place where brickprof does anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from brickprof.bricks import Brick, Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.records import BUDGET, DECLARED, Span
from brickprof.rules import wording
from brickprof.rules.like_layers import alike
from brickprof.rules.names import number
from brickprof.rules.story import Story

WHAT = "over-budget"
_KEPT, _INSIDE, _BRICKS = 4096, 32_768, 4096
_OWN = "user"
_QUESTION = "What makes the steps slow?"


class Took(NamedTuple):
    """One call of a brick."""

    step: tuple[int, int]
    budget_us: float
    host_us: float
    device_us: float | None
    span: int = 0


class Fare(NamedTuple):
    """How a brick fares in all its calls."""

    on: str
    us: float
    """The median."""
    budget_us: float
    over: int
    """Steps in which a call was over its budget."""
    steps: int
    taken: list[tuple[Took, float]]


class _Inner(NamedTuple):
    rank: int
    parent: int
    span: int
    brick: Brick
    own: bool
    """Whether it is a brick of the script's, and not one of the model's or of the training's."""
    host_us: float
    device_us: float | None


def fare(found: Sequence[Took]) -> Fare:
    on_device = [(time, time.device_us) for time in found if time.device_us is not None]
    taken = on_device or [(time, time.host_us) for time in found]
    over = {time.step for time, us in taken if us > time.budget_us}
    usual, steps = median(us for _, us in taken), {time.step for time, _ in taken}
    return Fare("device" if on_device else "host", usual, taken[-1][0].budget_us, len(over), len(steps), taken)


class Budgeted:
    """Follows spans; says which brick is furthest over what was declared for it."""

    def __init__(self) -> None:
        self._times: dict[tuple[Brick, str], deque[Took]] = {}
        self._inside: deque[_Inner] = deque(maxlen=_INSIDE)
        self._looking: dict[tuple[int, int], float] = {}

    def feed(self, span: Span) -> None:
        if span.phase == "step":
            if not self._times and len(self._looking) >= _KEPT:  # nobody has declared anything so far
                self._looking.clear()
            self._looking[span.rank, span.step] = (number(span.attributes.get("looking_ns")) or 0.0) / 1e3
            return
        host, device = span.host_ns / 1e3, None if span.device_ns is None else span.device_ns / 1e3
        if DECLARED in span.attributes:
            self._keep(span, host, device)
        if self._times and span.parent and span.brick.kind is not Kind.KERNEL:
            own = span.phase == _OWN
            self._inside.append(_Inner(span.rank, span.parent, span.id, span.brick, own, host, device))

    def _keep(self, span: Span, host: float, device: float | None) -> None:
        budget, key = number(span.attributes.get(BUDGET)), (span.brick, span.phase)
        if budget is None or not budget > 0 or (key not in self._times and len(self._times) >= _BRICKS):
            return
        took = Took((span.rank, span.step), budget, host, None if device is None or device < 0 else device, span.id)
        self._times.setdefault(key, deque(maxlen=_KEPT)).append(took)

    def worst(self, story: Story, contract: Contract) -> Violation | None:
        if not self._times:
            return None
        full = {(rank, event.step) for rank in story.ranks for event in story.events("sampled", rank)}
        around = self._around_others()
        over = {
            key: found for key, times in self._times.items()
            if (found := self._over(key, times, full, around, contract))
        }  # fmt: skip
        if not over:
            return None
        phase = max(over, key=lambda key: over[key].us / over[key].budget_us)[1]
        first, *_ = alike({key[0]: found.us / found.budget_us for key, found in over.items() if key[1] == phase}, story)
        return self._violation(first, phase, over[first, phase], len(over) - 1, story, contract)

    def _over(
        self,
        key: tuple[Brick, str],
        times: Sequence[Took],
        full: set[tuple[int, int]],
        around: set[tuple[int, int]],
        contract: Contract,
    ) -> Fare | None:
        """``full``: steps of which statistics were taken; ``around``: calls with bricks that are none of the script's
        inside."""
        found, most = fare(times), contract.threshold("over_budget")
        if found.steps < contract.threshold("steps") or found.us <= most * found.budget_us:
            return None
        if key[1] == _OWN and around.isdisjoint((time.step[0], time.span) for time, _ in found.taken):
            return found
        own = [
            us - (self._looking.get(time.step, 0.0) if found.on == "host" or time.step in full else 0.0)
            for time, us in found.taken
        ]
        return found if median(own) > most * found.budget_us else None

    def _around_others(self) -> set[tuple[int, int]]:
        """The calls inside which a brick was seen, however deep, that is none of the script's."""
        parents = {(each.rank, each.span): (each.rank, each.parent) for each in self._inside}
        found: set[tuple[int, int]] = set()
        for each in self._inside:
            call = None if each.own else (each.rank, each.parent)
            while call is not None and call not in found:
                found.add(call)
                call = parents.get(call)
        return found

    def _violation(
        self, brick: Brick, phase: str, found: Fare, others: int, story: Story, contract: Contract
    ) -> Violation:
        name = story.names.show(brick) or "the model"
        shown = f"{name} backward" if phase == "backward" else name
        far = [time for time, us in found.taken if us > contract.threshold("over_budget") * time.budget_us]
        rank, known = far[0].step[0], far[min(len(far), int(contract.threshold("steps"))) - 1].step[1]
        proof = tuple(f"span:{time.span}@{time.step[0]}" for time in far[:3])
        symptom = f"{shown} takes {_us(found.us)} us on the {found.on}, {_times(found)} what was declared for it"
        if others:
            symptom += f"; so do {wording.count(others, 'more brick')}, over theirs"
        text = f"{_us(found.budget_us)} us were declared, and its usual time (the median) is {_us(found.us)} us on the "
        text += f"{found.on}: it was over its budget in {found.over:,} of {wording.count(found.steps, 'timed step')}."
        return Violation(
            contract.id, WHAT, Severity.WARNING, symptom, far[0].step[1], known, name, "block", rank, proof,
            details={
                "question": _QUESTION,
                "then": [Because("How far is it over its budget?", text, name, proof), *self._most(found, name, story)],
            },
            static=_from_the_beginning(found, contract),
            action=f"Make {shown} faster, or declare what it may take (budget_us, or [tool.brickprof.budgets]).",
        )  # fmt: skip

    def _most(self, found: Fare, name: str, story: Story) -> list[Because]:
        """What takes most of it, of the bricks directly inside it; nothing where none was timed."""
        calls = {(time.step[0], time.span) for time, _ in found.taken}
        sums: dict[Brick, dict[tuple[int, int], float]] = {}
        for each in self._inside:
            call, us = (each.rank, each.parent), each.device_us if found.on == "device" else each.host_us
            if call in calls and us is not None:
                of = sums.setdefault(each.brick, {})
                of[call] = of.get(call, 0.0) + us
        usual = {brick: median(each.values()) for brick, each in sums.items()}
        brick = max(usual, key=lambda each: usual[each], default=None)
        if brick is None or usual[brick] <= 0:
            return []
        inner, share = story.names.show(brick), min(usual[brick] / found.us, 1.0)
        text = f"Of the bricks inside it {inner} takes most: {_us(usual[brick])} us, {share:.0%} of it."
        return [Because(f"What takes the time in {name}?", text, inner)]


def _from_the_beginning(found: Fare, contract: Contract) -> bool:
    first = [us for _, us in found.taken[: int(contract.threshold("steps"))]]
    return median(first) > contract.threshold("over_budget") * found.budget_us


def _times(found: Fare) -> str:
    return f"{found.us / found.budget_us:.3g} times"


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
