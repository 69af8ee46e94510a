"""Kernels that are launched a thousand times and more in a step: a loop in Python where one launch would do.

Enters: ``launches`` events (Triton kernels, by line) and ``window`` events (every kernel, as the profiler saw it).
Leaves: the part of C-GPUTRAIN-002 that speaks of launches, with the line or the block that launched them where either
is known. Counted for each micro-batch: accumulation repeats them all, and so many only in a whole step are a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from brickprof.bricks import Brick, Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.kernel_names import short
from brickprof.records import Event
from brickprof.rules import outcomes
from brickprof.rules.like_layers import alike
from brickprof.rules.names import whole
from brickprof.rules.story import Story


class Launched(NamedTuple):
    event: Event
    name: str
    times: float
    """For each micro-batch."""

    micros: int
    site: str
    blocks: tuple[tuple[Brick, float], ...] = ()
    """Those that launched it, with how often: most first."""


class Launches:
    contract = "C-GPUTRAIN-002"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        most = contract.threshold("identical_launches")
        launched = [each for rank in story.ranks if (each := list(_launched(story, rank)))]
        storms = [_storm(each, most) for each in launched] + [_storm(each, most / each[0].micros) for each in launched]
        for found in storms:
            if found:
                told = [_violation(found, _place(found, story), contract)]
                return outcomes.broken(contract, told, f"{most:g} equal launches a step")
        return outcomes.aside(contract, "launches alone do not decide it")


def _launched(story: Story, rank: int) -> Iterator[Launched]:
    passes = story.wholes("loss", "micro", rank)
    micros = int(passes.max()) + 1 if len(passes) else 1
    for kind, field in (("launches", "kernels"), ("window", "most_launched")):
        for event in story.events(kind, rank):
            listed = event.fields.get(field)
            for row in listed if isinstance(listed, list) else ():
                if isinstance(row, list) and len(row) >= 2:
                    site = str(row[2]) if len(row) > 2 else ""
                    blocks = tuple(_blocks(row[3], rank, story, micros)) if len(row) > 3 else ()
                    yield Launched(event, str(row[0]), whole(row[1]) / micros, micros, site, blocks)


def _blocks(listed: Any, rank: int, story: Story, micros: int) -> Iterator[tuple[Brick, float]]:
    for row in listed if isinstance(listed, list) else ():
        if isinstance(row, list) and len(row) == 2:
            brick = story.names.brick(rank, whole(row[0], -1))
            if brick is not None and brick.kind is Kind.BLOCK and brick.path:
                yield brick, whole(row[1]) / micros


def _storm(launched: list[Launched], most: float) -> list[Launched]:
    """The kernel that is launched most, in the steps that counted it, where it is too often in nearly all of them."""
    kernels: dict[str, list[Launched]] = {}
    for each in launched:
        kernels.setdefault(each.name, []).append(each)
    counted = {name: float(np.median([each.times for each in seen])) for name, seen in kernels.items()}
    name = max(counted, key=lambda each: counted[each], default="")
    return kernels[name] if name and counted[name] > most else []


class Place(NamedTuple):
    brick: str
    times: float
    others: int
    """More blocks that are built alike and launch about as many."""


def _place(found: list[Launched], story: Story) -> Place | None:
    """The block that launches it most; of layers that are built alike, the first in the forward."""
    blocks = next((each.blocks for each in found if each.blocks), ())
    if not blocks:
        return None
    times = dict(blocks)
    first, *others = alike(times, story)
    return Place(story.names.show(first), times[first], len(others))


def _violation(found: list[Launched], place: Place | None, contract: Contract) -> Violation:
    first, usual = found[0], float(np.median([each.times for each in found]))
    site = next((each.site for each in found if each.site), "")
    where = f" at {site}" if site else ""
    if place is not None:
        alike = f", and about as often by {place.others} more like it" if place.others else ""
        where += f", {place.times:,.0f} of them by {place.brick}{alike}"
    brick = place.brick if place is not None else first.name
    micros, noted = first.micros, usual <= contract.threshold("identical_launches")
    times = f"{usual:,.0f} times in a step"
    if noted:
        times = f"{usual * micros:,.0f} times in a step, {usual:,.0f} for each of {micros} micro-batches"
    symptom = f"{short(first.name)} is launched {times}{where}"
    proof = tuple(each.event.id for each in found[:3])
    text = "Each launch takes the host some microseconds, whatever it computes"
    text += "; fewer and larger micro-batches make fewer of them." if noted else "; so many take longer than the work."
    severity, explains = (Severity.INFO, frozenset[str]()) if noted else (Severity.WARNING, frozenset({"launch-storm"}))
    return Violation(
        contract.id, "launches", severity, symptom, first.event.step, found[min(len(found), 2) - 1].event.step, brick,
        "kernel", first.event.rank, proof, cause="launch-storm", certainty=0.9, static=True,
        explains=explains, whys=(Because("Why is that slow?", text, brick, proof),),
        details={"question": "What makes the steps slow?", "asked": "What makes the steps slow?"},
        action="Do all rows (or positions) in one launch: let the grid run over them.",
    )  # fmt: skip


RULE = Launches
