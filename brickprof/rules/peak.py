"""Whether the learning rate reaches its peak before the run ends.

Enters: the rates of one optimizer and its schedules. Leaves: a violation where the rate still rose when the run ended,
and, while the run goes on, where it cannot be otherwise: the warm-up is several times as long as the run is to be
(see ``lengths``), and the rates so far lie on a line that agrees.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.rules import declared, lengths
from brickprof.rules.lengths import Length
from brickprof.rules.schedules import Schedule, steps_made
from brickprof.rules.story import Story, Track

CONTRACT = "C-COSINE-001"
_FOLLOW = frozenset({"plateau", "not-learning", "slow-learning", "small-updates", "underfitting", "schedule-end"})
_TOO_LONG = 3
_STRAIGHT = 0.01


def never(
    story: Story, rank: int, at: int, own: list[Schedule], target: float | None, source: tuple[str, ...],
    contract: Contract,
) -> Violation | None:  # fmt: skip
    found = story.rates(rank, at).per_step().finite()
    updates = declared.updates(story, rank).get(at, 0)
    if target is None or updates < contract.threshold("fewest_updates") or len(found) < 4:
        return None
    if found.steps[0] > 0.1 * found.steps[-1]:
        return None  # it took over from another: the schedule did not begin with it
    if not _rises(found) or float(found.values[-1]) >= contract.threshold("peak_reached") * target:
        return None
    length = lengths.foreseen(story, rank, at)
    known = None if length is None else _known_from(story, rank, at, found, own, target, length, contract)
    if declared.over(story, rank):
        return _ended(story, rank, found, updates, own, target, source, known)
    if length is None or known is None:
        return None
    return _ahead(story, rank, found, own, target, source, length, known)


def _rises(found: Track) -> bool:
    """From the first update to the last one, and in the last fifth too."""
    last = float(found.values[-1])
    still = float(found.values[int(len(found) * 0.8)]) < last
    return still and found.values[0] < last and bool(np.all(np.diff(found.values) >= 0))


def _ended(
    story: Story, rank: int, found: Track, updates: int, own: list[Schedule], target: float, source: tuple[str, ...],
    known: int | None,
) -> Violation:  # fmt: skip
    last, length = float(found.values[-1]), _warmup(story, own)
    needs = f"a warm-up of {length:,.0f} steps" if length else _rise(target / last * updates)
    evidence = (found.evidence(0), found.evidence(len(found) - 1), *source)
    return _violation(
        f"the learning rate was still rising when the run ended: {last:.3g} of {target:g} after {updates:,} updates",
        Severity.ERROR if last < 0.5 * target else Severity.WARNING, 0.93, rank, evidence,
        int(found.steps[-1]) if known is None else known,
        f"The schedule has {needs}, and the run makes {updates:,} updates: it ends at {last / target:.2%} of the peak.",
        updates,
    )  # fmt: skip


def _ahead(
    story: Story, rank: int, found: Track, own: list[Schedule], target: float, source: tuple[str, ...],
    length: Length, known: int,
) -> Violation:  # fmt: skip
    """The run goes on, and its end comes long before that of the warm-up."""
    needs, last = _warmup(story, own) or 0.0, float(found.values[-1])
    evidence = (found.evidence(0), found.evidence(len(found) - 1), *source, *length.evidence)
    return _violation(
        f"the learning rate will not reach its peak: the warm-up has {needs:,.0f} steps, and the run is to make "
        f"{length.updates:,.0f} updates",
        Severity.WARNING, 0.85, rank, evidence, known,
        f"The rate is {last:.3g} of {target:g} and rises by the same amount in every update; {length.said}.",
        int(length.updates),
    )  # fmt: skip


def _rise(updates: float) -> str:
    return f"a rise that needs about {updates:,.0f} updates"


def _warmup(story: Story, own: list[Schedule]) -> float | None:
    given = next((one.warmup for one in own if one.warmup), None)
    return given or declared.amount(declared.only(declared.settings(story), "warmup_steps"))


def _known_from(
    story: Story, rank: int, at: int, found: Track, own: list[Schedule], target: float, length: Length,
    contract: Contract,
) -> int | None:  # fmt: skip
    """The step from which on the length of the run, that of the warm-up and the rates so far tell it."""
    warmup, updates = _warmup(story, own), declared.updates(story, rank).get(at, 0)
    if not warmup or warmup < _TOO_LONG * length.updates:
        return None
    if updates > length.updates or declared.resumed_at(story, rank):
        return None  # it goes on beyond what was said, or began elsewhere
    made = [steps_made(story, rank, one) for one in own if one.warmup]
    if any(steps is None or not 0.9 * (updates - 1) <= steps <= 1.5 * updates for steps in made):
        return None  # it counts something else than updates
    for count in range(int(contract.threshold("fewest_updates")), len(found) + 1):
        if _needed(found, count, target) >= _TOO_LONG * length.updates:
            return int(found.steps[count - 1])
    return None


def _needed(found: Track, count: int, target: float) -> float:
    """The step at which a straight line through the first ``count`` rates comes to ``target``; 0 where none fits."""
    steps, values = found.steps[:count].astype(float), found.values[:count]
    rise, length = float(values[-1] - values[0]), float(steps[-1] - steps[0])
    if rise <= 0 or length <= 0:
        return 0.0
    line = values[0] + rise * (steps - steps[0]) / length
    if float(np.max(np.abs(values - line))) > _STRAIGHT * rise:
        return 0.0
    return float(steps[0]) + (target - float(values[0])) / rise * length


def _violation(
    symptom: str, severity: Severity, certainty: float, rank: int, evidence: tuple[str, ...], detected: int, why: str,
    updates: int,
) -> Violation:  # fmt: skip
    return Violation(
        CONTRACT, "schedule", severity, symptom, 0, detected, "", "optimizer", rank, evidence,
        {"question": "Did the learning rate reach its peak?", "asked": "How large was the learning rate?"},
        "schedule-never-peaks", certainty, _FOLLOW,
        (Because("Why does it not get there?", why, "", evidence),),
        action=f"Make the warm-up 1 to 10 % of the run's {updates:,} updates, or the run longer.", static=True,
    )  # fmt: skip
