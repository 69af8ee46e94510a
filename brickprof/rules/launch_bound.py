"""A device that waits for the host to launch: thousands of small kernels, and pauses between them.

Enters: ``window`` events (kernels of a step, how long the device was busy with them) and the kernels' own times, the
usual time of a step, waits for data and host reads, and what the supervisor saw of the card. Leaves: a part of
C-UTILISATION-001, launch-storm with the numbers. A small model on a large card is like that and no fault: it is a note,
and a warning only where the card itself was hardly used over a long run of a model that is not small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brickprof.bricks import Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event, Record, Span
from brickprof.rules import cards, outcomes
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story
from brickprof.rules.tempo import waits

_MOST_KERNELS = 100_000
_WAITS = 0.2
"""Of the time: a training that waits so long for data has another reason to be idle."""
_QUESTION = "Why is the card idle?"
_ACTION = (
    "Launch less: torch.compile(model) fuses small operations, mode='reduce-overhead' (or torch.cuda.graphs) launches "
    "a whole step at once, fused=True does an optimizer's update in few kernels, a larger batch gives each more to do."
)


class Bound(NamedTuple):
    """What the windows of a rank show, in the median."""

    events: tuple[Event, ...]
    kernels: float
    step_ns: float
    idle: float
    kernel_ns: float
    """Of a kernel in the middle; the mean where they were not timed one by one."""


class LaunchBound:
    contract = "C-UTILISATION-001"
    hears = (Span,)

    def __init__(self) -> None:
        self._times: dict[int, list[int]] = {}

    def feed(self, record: Record) -> None:
        """Device times of the kernels that the profiler saw."""
        if not isinstance(record, Span) or record.brick.kind is not Kind.KERNEL or record.device_ns is None:
            return
        times = self._times.setdefault(record.rank, [])
        if record.attributes.get("source") == "profiler" and len(times) < _MOST_KERNELS:
            times.append(record.device_ns)

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "nothing was trained")
        held = held_up(story, contract)
        if held is None:
            return outcomes.aside(contract, "launches alone do not decide it")
        rank, bound = held
        # Where a step has more kernels than spans, the longest have one.
        told = [ns for event in bound.events if (ns := whole(event.fields.get("median_ns"))) > 0]
        if times := told or self._times.get(rank):
            bound = bound._replace(kernel_ns=float(np.median(times)))
        return outcomes.broken(contract, [_violation(story, rank, bound, contract)])


def held_up(story: Story, contract: Contract) -> tuple[int, Bound] | None:
    """The first rank whose device waits for launches, and for nothing else that is known."""
    for rank in story.ranks:
        bound = _bound(story, rank)
        if bound is not None and _starves(bound, contract) and not _otherwise(story, rank, contract):
            return rank, bound
    return None


def _bound(story: Story, rank: int) -> Bound | None:
    rows = [(event, *told) for event in story.events("window", rank) if (told := _told(event)) is not None]
    if not rows:
        return None
    kernels, busy, lasted = (float(np.median([row[at] for row in rows])) for at in (1, 2, 3))
    usual = story.step_times(rank).values
    # The profiler makes the host slower, and the device look idler than it is.
    step = min(lasted, float(np.median(usual)) * 1e9) if len(usual) else lasted
    return Bound(tuple(row[0] for row in rows), kernels, step, max(0.0, 1 - busy / step), busy / kernels)


def _told(event: Event) -> tuple[int, int, int] | None:
    """Kernels, nanoseconds in which the device was busy, and those of the step."""
    counted = whole(event.fields.get("kernels")), whole(event.fields.get("busy_ns")), whole(event.fields.get("step_ns"))
    return counted if all(count > 0 for count in counted) else None


def _starves(bound: Bound, contract: Contract) -> bool:
    """Whether the launches are many, come one after the other, and leave the device with nothing to do."""
    return (
        bound.kernels >= contract.threshold("kernels")
        and bound.idle >= contract.threshold("idle")
        and bound.step_ns / bound.kernels <= 1e3 * contract.threshold("launch_us")
    )


def _otherwise(story: Story, rank: int, contract: Contract) -> bool:
    """Whether the device waits for something else: data, or a host that reads."""
    starved = any(each.waited.sum() >= _WAITS * each.lasted.sum() for each in waits(story, rank) if len(each.waited))
    told = [number(event.fields.get("device")) for event in story.events("syncs", rank)]
    reads = [count for count in told if count is not None]
    return starved or (len(reads) >= 3 and float(np.median(reads)) >= contract.threshold("reads"))


def _violation(story: Story, rank: int, bound: Bound, contract: Contract) -> Violation:
    used = _hardly_used(story, contract)
    symptom = f"the device is idle {bound.idle:.0%} of a step while the host launches {bound.kernels:,.0f} kernels"
    text = (
        f"A step of {bound.step_ns / 1e6:.3g} ms has {bound.kernels:,.0f} kernels, of {bound.kernel_ns / 1e3:.3g} us "
        f"in the median; the host takes {bound.step_ns / bound.kernels / 1e3:.3g} us to launch each. The device waits."
    )
    if used is not None:
        text += f" Over the whole run the card was in use {used:.0%} of the time."
    first, last = bound.events[0], bound.events[-1]
    proof = tuple(event.id for event in bound.events[:3])
    return Violation(
        contract.id, "launch-bound", Severity.INFO if used is None else Severity.WARNING, symptom, first.step,
        last.step, "", "step", rank, proof, cause="launch-storm", certainty=0.8, static=True,
        explains=frozenset({"low-utilisation", "slow"}), whys=(Because(_QUESTION, text, "", proof),),
        details={"question": _QUESTION, "asked": _QUESTION, "kernels": bound.kernels, "idle": bound.idle},
        action=_ACTION,
    )  # fmt: skip


def _hardly_used(story: Story, contract: Contract) -> float | None:
    """The utilisation of the card that was used least, where it is very low over a long run of a model of some size."""
    window = cards.training(story)
    if window is None or parameters(story) < contract.threshold("small_model"):
        return None
    rated = [[look for look in card.during(window) if look.value("utilisation") is not None] for card in _seen(story)]
    long = [looks for looks in rated if looks and cards.count(looks) >= contract.threshold("long")]
    used = min((cards.mean(looks, "utilisation") or 0.0 for looks in long), default=1.0)
    return used if used < contract.threshold("very_low") else None


def parameters(story: Story) -> int:
    """Numbers of the model, on the rank that has most of them."""
    sizes = [
        sum(tensor.numel for tensor in story.names.tensors(rank) if tensor.model and not tensor.alias)
        for rank in story.ranks
    ]
    return max(sizes, default=0)


def _seen(story: Story) -> list[cards.Card]:
    return [card for card in cards.cards(story) if card.looks]


RULE = LaunchBound
