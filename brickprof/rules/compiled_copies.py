"""Copies that have no line, because the code that makes them was compiled: what can be said of where they are.

Enters: spans of the profiler's windows, spans of blocks, ``compile`` events. Leaves: the blocks that the copies lie in,
and the functions that were compiled, in words; and how they keep to a budget that is declared. A number that is read
is a copy as well in a window, so that few more than are declared decide nothing.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from brickprof.bricks import Brick, Kind
from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Violation
from brickprof.records import Record, Span
from brickprof.rules import outcomes
from brickprof.rules.story import Story
from brickprof.rules.traffic import ACTION, EXPLAINED, QUESTION

_MOST = 100_000
_MOST_NAMED = 3
_FEWEST = 2
"""Windows that accuse."""


class Unplaced:
    """Copies that only the profiler saw, and the spans around them."""

    def __init__(self) -> None:
        self._parents: Counter[tuple[int, int]] = Counter()
        self._blocks: dict[tuple[int, int], Brick] = {}

    def feed(self, record: Record) -> None:
        if not isinstance(record, Span):
            return
        brick, place = record.brick, (record.rank, record.parent)
        seen = brick.kind is Kind.TRANSFER and brick.path != "D2D" and record.attributes.get("source") == "profiler"
        if brick.kind is Kind.BLOCK and len(self._blocks) < _MOST:
            self._blocks[record.rank, record.id] = brick
        elif seen and (len(self._parents) < _MOST or place in self._parents):
            self._parents[place] += 1

    def blocks(self, story: Story) -> str:
        """ "most of them in encoder (Encoder)"; "" where they lie in no block."""
        counted: Counter[str] = Counter()
        for place, copies in self._parents.items():
            block = self._blocks.get(place)
            counted[story.names.show(block) if block is not None else ""] += copies
        name, copies = max(counted.items(), key=lambda item: item[1], default=("", 0))
        return f"most of them in {name}" if name and 2 * copies > counted.total() else ""


Windows = dict[int, int]
"""By step that the profiler saw: copies between host and device."""


def held_to(
    declared: float, windows: dict[int, Windows], where: str, story: Story, contract: Contract
) -> ContractResult | None:
    """What the windows of each rank say of ``declared`` transfers a step; None where they do not decide it: one alone
    may have met an evaluation."""
    threshold, more = f"{declared:g} transfers a step", contract.threshold("more_transfers")
    for rank, steps in windows.items():
        if len(steps) >= _FEWEST and min(steps.values()) > declared + more:
            return outcomes.broken(contract, [_over(declared, steps, rank, where, story, contract)], threshold)
    counts = [count for steps in windows.values() for count in steps.values()]
    if len(counts) < contract.threshold("looks") or max(counts) > declared:
        return None
    return outcomes.held(contract, f"{max(counts)} transfers a step at most, in the profiler's windows", threshold)


def _over(
    declared: float, steps: Windows, rank: int, where: str, story: Story, contract: Contract
) -> Violation:  # fmt: skip
    usual = f"{np.median(list(steps.values())):g} copies between host and device in a step"
    symptom = f"{usual}{where and f', {where}'}, where {declared:g} are declared"
    evidence = tuple(event.id for event in story.events("window", rank)[:3])
    return Violation(
        contract.id, "extra-transfers", Severity.WARNING, symptom, min(steps), min(steps), "", "transfer", rank,
        evidence, cause="extra-transfers", certainty=0.8, static=True, explains=EXPLAINED - {"extra-transfers"},
        details=dict(QUESTION), action=ACTION,
    )  # fmt: skip


def functions(story: Story) -> str:
    """The script's functions that were compiled, with their lines; else the models."""
    events = [event.fields for rank in story.ranks for event in story.events("compile", rank)]
    named = [f"{told['function']} at {told.get('site', '?')}" for told in events if told.get("function")]
    named = list(dict.fromkeys(named or [str(told["model"]) for told in events if told.get("model")]))
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more
