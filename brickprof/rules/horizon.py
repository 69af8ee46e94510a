"""Whether a schedule ends where the run ends.

Enters: the rates of one optimizer and its schedules. Leaves: a violation where the schedule was made for a much longer
run (its rate is hardly lower at the end), where a cosine went to its end and up again, or where most of the run was
made with nothing left of the rate. Rates that somebody sets by hand are judged by their shape: a straight line and a
cosine tell where they would end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.rules import declared, progress, wording
from brickprof.rules.schedules import Schedule, steps_made
from brickprof.rules.story import Story, Track

CONTRACT = "C-COSINE-001"
_FOLLOW = frozenset({"plateau", "not-learning", "slow-learning", "small-updates", "overfitting", "underfitting"})
_FALLING = frozenset({"CosineAnnealingLR", "OneCycleLR", "LinearLR", "PolynomialLR", "LambdaLR", "by hand"})
_ONLY_FALL = frozenset({"StepLR", "MultiStepLR", "ExponentialLR", "PolynomialLR"})
_TURNS_ROUND = frozenset({"CosineAnnealingLR"})
_MEANT_TO_TURN = frozenset({"CosineAnnealingWarmRestarts", "CyclicLR", "ReduceLROnPlateau"})
_FIT = 2e-3
_LEAST_FALL = 1e-5
_TOO_LONG = 3


class _End(NamedTuple):
    """How the schedule stands when the run is over."""

    cls: str
    steps: float
    horizon: float
    evidence: tuple[str, ...]


def judged(story: Story, rank: int, at: int, own: list[Schedule], contract: Contract) -> Violation | None:
    found = story.rates(rank, at).per_step().finite()
    updates = declared.updates(story, rank).get(at, 0)
    if updates < contract.threshold("fewest_updates") or len(found) < 4 or any(o.cls in _MEANT_TO_TURN for o in own):
        return None
    if found.steps[0] > 0.1 * found.steps[-1]:
        return None  # it took over from another: the schedule did not begin with it
    turned = _turned(story, rank, found, own, updates)
    if turned is not None:
        return turned
    if declared.over(story, rank):
        return _spent(story, rank, found, updates, own, contract) or _left(story, rank, found, own, contract)
    return _foreseen(story, rank, found, own, contract)


def _turned(story: Story, rank: int, found: Track, own: list[Schedule], updates: int) -> Violation | None:
    """A cosine that is stepped beyond its end climbs again."""
    one = next((one for one in own if one.cls in _TURNS_ROUND and one.horizon), None)
    made = steps_made(story, rank, one) if one is not None else None
    if one is None or made is None or one.horizon is None or made < 1.5 * one.horizon:
        return None
    peak, low = float(found.values.max()), int(np.argmin(found.values))
    again = found.values[low:].max() if low < len(found) - 1 else 0.0
    if found.values[low] > 0.1 * peak or again < 0.3 * peak:
        return None
    times = made / one.horizon
    symptom = (
        f"the learning rate fell to its end after {one.horizon:,.0f} steps and rose again: {one.cls} was stepped "
        f"{made:,.0f} times, {times:.3g} times its horizon"
    )
    return _violation(
        rank, symptom, min(int(one.horizon), int(found.steps[-1])), min(int(2 * one.horizon), int(found.steps[-1])),
        Severity.ERROR if times >= 3 else Severity.WARNING, 0.92,
        f"T_max is {one.horizon:,.0f} and the schedule was stepped {made:,.0f} times in {updates:,} updates: it is "
        "counted in one unit (epochs) and stepped in another (batches)",
        (*one.evidence, found.evidence(low)),
        f"Set T_max to the scheduler's steps in the whole run ({made:,.0f}), or step the schedule once an epoch.",
    )  # fmt: skip


def _spent(
    story: Story, rank: int, found: Track, updates: int, own: list[Schedule], contract: Contract
) -> Violation | None:
    """Most of the run was made with next to no rate."""
    peak = float(found.values.max())
    spent = found.values < contract.threshold("rate_spent") * peak
    if not spent[-1] or peak <= 0:
        return None
    start = int(len(spent) - np.argmin(spent[::-1])) if not spent.all() else 0
    first = int(found.steps[start])
    last = int(found.steps[-1])
    if own and all(one.cls in _ONLY_FALL for one in own):
        last = max(last, story.steps(rank) - 1)  # nobody looked at the rate so late, and it cannot have risen
    share = 1 - first / max(1, last)
    if share < contract.threshold("spent_share"):
        return None
    stands = progress.stands(story.losses(rank).since(first), least=0.05)
    name = own[0].cls if own else "the rate set by hand"
    symptom = (
        f"the learning rate is below {contract.threshold('rate_spent'):g} of its peak from step {first:,} on: "
        f"{share:.0%} of the run was made without it"
    )
    return _violation(
        rank, symptom, first, min(int(found.steps[-1]), first + max(1, updates // 10)),
        Severity.ERROR if stands else Severity.WARNING, 0.88,
        f"{name} brought the rate from {peak:.3g} to {float(found.values[start]):.3g} by step {first:,} of "
        f"{updates:,}: it counts updates where epochs were meant, or was made for a shorter run",
        (found.evidence(int(np.argmax(found.values))), found.evidence(start), *(own[0].evidence[:1] if own else ())),
        "Make the schedule as long as the run: step it once an epoch, or give its lengths in updates.",
    )  # fmt: skip


def _foreseen(story: Story, rank: int, found: Track, own: list[Schedule], contract: Contract) -> Violation | None:
    """The run goes on, and its declared end comes long before that of the schedule."""
    asked = declared.only(declared.settings(story), "max_steps")
    known = _known_from(story, rank, found, own, contract)
    end = _end(story, rank, found, own, int(np.argmax(found.values)))
    if asked is None or known is None or end is None:
        return None
    length = declared.amount(asked) or 0.0
    symptom = f"the schedule ends after {end.horizon:,.0f} steps, and the run is to make {length:,.0f}"
    return _violation(
        rank, symptom, 0, known, Severity.WARNING, 0.8,
        f"{end.cls} was built for {end.horizon:,.0f} steps, {end.horizon / length:,.3g} times what was declared",
        (*end.evidence, asked.source),
        f"Give the schedule the length of this run ({length:,.0f} steps), so that the rate anneals before it ends.",
    )  # fmt: skip


def _known_from(story: Story, rank: int, found: Track, own: list[Schedule], contract: Contract) -> int | None:
    """The step from which on a declared length of the run and the rates seen told that the schedule is too long."""
    length = declared.amount(declared.only(declared.settings(story), "max_steps"))
    fewest = int(contract.threshold("fewest_updates"))
    if not length or declared.resumed_at(story, rank):
        return None
    one = next((one for one in own if one.cls in _FALLING and one.horizon), None)
    if one is not None and one.horizon is not None and not (one.cls == "LinearLR" and one.warmup):
        made, updates = steps_made(story, rank, one), declared.updates(story, rank).get(one.optimizer, 0)
        long = one.horizon >= _TOO_LONG * length and made is not None and made >= 0.9 * (updates - 1)
        return int(found.steps[min(fewest, len(found)) - 1]) if long else None
    top = int(np.argmax(found.values))
    for count in range(top + max(fewest, 8), len(found) + 1):
        end = _end(story, rank, found.until(int(found.steps[count - 1])), own, top)
        if end is not None and end.horizon >= _TOO_LONG * length:
            return int(found.steps[count - 1])
    return None


def _left(story: Story, rank: int, found: Track, own: list[Schedule], contract: Contract) -> Violation | None:
    """The run is over and the schedule is not half-way."""
    top = int(np.argmax(found.values))
    peak, last = float(found.values[top]), float(found.values[-1])
    falls = bool(np.all(np.diff(found.values[top:]) <= 1e-12 * peak))
    end = _end(story, rank, found, own, top)
    if end is None or not falls or last < contract.threshold("rate_left") * peak or end.steps > 0.5 * end.horizon:
        return None
    if _may_have_stopped_early(story, rank) or len(found) - top < 4:
        return None
    known = end.cls != "by hand"
    before = _known_from(story, rank, found, own, contract)
    seen = int(found.steps[-1]) if before is None else before
    grave = last > 0.9 * peak and known and end.horizon >= 3 * end.steps
    symptom = (
        f"the learning rate is still {last / peak:.0%} of its peak when the run ends: the schedule ends after "
        f"{'' if known else 'about '}{end.horizon:,.0f} steps, the run made {end.steps:,.0f}"
    )
    return _violation(
        rank, symptom, 0, seen, Severity.ERROR if grave else Severity.WARNING, 0.85 if known else 0.7,
        f"{end.cls} was built for {end.horizon:,.0f} steps and made {end.steps:,.0f} of them "
        f"({end.steps / end.horizon:.0%})" if known else
        f"the rates lie on a curve that ends after about {end.horizon:,.0f} updates; the run made {end.steps:,.0f}",
        (*end.evidence, found.evidence(len(found) - 1)),
        f"Give the schedule the length of this run ({end.steps:,.0f} steps), so that the rate anneals before it ends.",
    )  # fmt: skip


def _end(story: Story, rank: int, found: Track, own: list[Schedule], top: int) -> _End | None:
    one = next((one for one in own if one.cls in _FALLING and one.horizon), None)
    if one is not None and one.horizon is not None:
        if one.cls == "LinearLR" and one.warmup:
            return None
        made = steps_made(story, rank, one)
        return None if made is None else _End(one.cls, made, one.horizon, one.evidence)
    guess = None if own and own[0].cls != "LambdaLR" else _extrapolated(found, top)
    if guess is None:
        return None
    return _End("by hand", float(found.steps[-1] + 1), guess, (found.evidence(top),))


def _extrapolated(found: Track, top: int) -> float | None:
    """The update at which a straight line or a cosine through the falling rates reaches zero."""
    steps, values = found.steps[top:].astype(float), found.values[top:]
    peak = float(values[0])
    if len(values) < 8 or peak <= 0 or values[-1] > (1 - _LEAST_FALL) * peak:
        return None
    fit = min(1.0, 20 * (1 - float(values[-1]) / peak))  # a curve that has hardly begun to fall has to fit the better
    start = steps[0]
    length = (steps[-1] - start) or 1.0
    along = (steps - start) / length
    line = 1 - along * (1 - values[-1] / peak)
    if float(np.max(np.abs(values / peak - line))) < _FIT * fit:
        return float(start + length / (1 - values[-1] / peak))
    angle = math.acos(max(-1.0, min(1.0, 2 * float(values[-1]) / peak - 1)))
    if float(np.max(np.abs(values / peak - (1 + np.cos(along * angle)) / 2))) < _FIT * 5 * fit:
        return float(start + length * math.pi / angle)
    return None


def _may_have_stopped_early(story: Story, rank: int) -> bool:
    """Evaluation had stopped getting better: somebody may have ended the run because of it."""
    if any(name in declared.settings(story) for name in ("patience", "early_stopping")):
        return True
    losses = story.track("evaluation", "loss", rank).finite().values
    return len(losses) >= 4 and int(np.argmin(losses)) < len(losses) - 2


def _violation(
    rank: int, symptom: str, first: int, detected: int, severity: Severity, certainty: float, why: str,
    evidence: tuple[str, ...], action: str,
) -> Violation:  # fmt: skip
    return Violation(
        CONTRACT, "schedule", severity, symptom, first, detected, "", "optimizer", rank, evidence,
        {"question": "Does the schedule fit the run?", "asked": "What did the learning rate do?"},
        "schedule-horizon-wrong", certainty, _FOLLOW,
        (Because("Why does the schedule not end with the run?", wording.sentence(why), "", evidence),),
        action=action, static=True,
    )  # fmt: skip
