"""C-TRAINSTABLE-001, from a log: the loss scale settles, and updates are made.

Enters: the loss scale, overflows, and counts of skipped updates. Leaves: a scale that collapsed, or updates that are
skipped most of the time. A scaler that begins at 2^32 and halves seventeen times until it fits is at its work: what
counts is whether it ever stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import outcomes, wording
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-TRAINSTABLE-001"
_SPENT = 1.0
_BEGAN_AT = 256.0
_HALF = 0.5
_FEWEST = 20
_FOLLOWS = frozenset({"nonfinite", "not-learning", "plateau", "diverged", "crashed", "exited"})


@dataclass(frozen=True, slots=True)
class Skips:
    made: float
    """Updates that were skipped in the last half of the log, as a share of its steps."""
    count: int
    first: int
    evidence: tuple[str, ...]


class LossScale:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not (len(seen.scales) or seen.measures("skipped")):
            return outcomes.unjudged(contract, "")
        violation = _collapsed(seen) or _skips(seen)
        if violation is not None and not _after_the_loss(seen, violation):
            return outcomes.broken(contract, [violation], "updates are made")
        counted = wording.count(len(seen.overflows), "update") + " skipped" if seen.overflows else "it settles"
        return outcomes.held(contract, f"loss scale: {counted}")


def _after_the_loss(seen: View, violation: Violation) -> bool:
    """Whether the loss had broken before: then every update overflows, and the scale follows from that."""
    broken = np.flatnonzero(~np.isfinite(seen.loss.values))
    return bool(len(broken)) and int(seen.loss.steps[broken[0]]) <= violation.first_step


def _collapsed(seen: View) -> Violation | None:
    scales = seen.scales.finite()
    if len(scales) < 4:
        return None
    highest, last = float(scales.values.max()), float(scales.values[-1])
    if highest < _BEGAN_AT or last > _SPENT:
        return None
    begin = _fall_began(scales)
    symptom = f"the loss scale fell from {show(highest)} to {show(last)} and did not come back"
    text = (
        f"At a scale of {show(last)} a gradient that does not fit float16 is itself beyond 65,504, or not a number: "
        "no scale helps any more."
    )
    return _violation(seen, symptom, text, int(scales.steps[begin]), scales.evidences((begin, len(scales) - 1)),
                      int(scales.steps[-1]))  # fmt: skip


def _fall_began(scales: Track) -> int:
    """Where the last fall began: the first point below a height that the scale never reached again."""
    values = scales.values
    place = len(values) - 1
    while place > 0 and values[place - 1] >= values[place]:
        place -= 1
    lower = np.flatnonzero(values[place:] < values[place])
    return place + (int(lower[0]) if len(lower) else 0)


def _skips(seen: View) -> Violation | None:
    told = _counted(seen)
    if told is None or told.made < _HALF or told.count < _FEWEST:
        return None
    symptom = f"{told.made:.0%} of the updates in the last half of the log were skipped for overflows"
    text = "A scaler skips one update in thousands, when it tries a larger scale; here it never finds one that fits."
    return _violation(seen, symptom, text, told.first, told.evidence, seen.last)


def _counted(seen: View) -> Skips | None:
    half = seen.last / 2
    late = [event for event in seen.overflows if event.step > half]
    if late and seen.by_steps and seen.last > 2 * _FEWEST:
        steps = {event.step for event in late}
        if len(steps) > 1:
            return Skips(len(late) / max(1.0, seen.last - half), len(late), late[0].step, (late[0].id, late[-1].id))
    for counted in seen.measures("skipped").values():
        known = counted.per_step().finite()
        after = known.since(int(half))
        if len(after) < 4 or not seen.by_steps:
            continue
        apart = float(np.median(np.diff(known.steps)))
        total = _of_intervals(after, apart) if not _adds_up(known, apart) else float(after.values[-1] - after.values[0])
        if total > 0:
            share = total / max(1.0, float(after.steps[-1] - after.steps[0]))
            return Skips(min(share, 1.0), int(total), int(after.steps[0]), after.evidences((0, len(after) - 1)))
    return None


def _of_intervals(after: Track, apart: float) -> float:
    """Updates that were skipped, where each line tells those of its own interval."""
    return float(np.minimum(after.values[1:], apart).sum())


def _adds_up(known: Track, apart: float) -> bool:
    """Whether the count goes on from line to line: it never falls, and is not just all steps of each interval."""
    return bool(np.all(np.diff(known.values) >= 0)) and not bool(np.all(known.values[1:] == apart))


def _violation(seen: View, symptom: str, text: str, first: int, proof: tuple[str, ...], known: int) -> Violation:
    return Violation(
        CONTRACT, "scale-collapse", Severity.ERROR, symptom, first, known, "", "optimizer", seen.rank, proof,
        {"logged": True, "question": "Are updates made at all?", "asked": "What does the loss scaler do?"},
        "fp16-overflow", 0.75, _FOLLOWS, (Because("Why does no scale fit?", text, "", proof),), (),
        "Use bfloat16; or clip gradients, lower the learning rate, and keep norms and softmax in float32.",
        f"brickprof run --deep-at {first} SCRIPT",
    )  # fmt: skip


RULE = LossScale
