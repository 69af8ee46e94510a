"""Whether a schedule that waits for progress is told of progress.

Enters: what it was told (``measure``), which way it counts as better (``mode``), and the losses of the run. Leaves: a
violation where what it is told gets better as the training does, and it counts that as worse: an accuracy that is to
be as low as possible, or a loss that is to be high. Each good epoch then brings the next cut of the rate nearer.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.records import Event
from brickprof.rules import curves
from brickprof.rules.names import number
from brickprof.rules.schedules import Schedule
from brickprof.rules.story import Story
from brickprof.rules.story.tracks import Floats

CONTRACT = "C-COSINE-001"
_FOLLOW = frozenset({"plateau", "not-learning", "slow-learning", "small-updates", "underfitting", "schedule"})
_FEWEST = 6
_CLEAR = 0.5


def backwards(story: Story, rank: int, own: list[Schedule]) -> Violation | None:
    for one in own:
        told = [event for event in one.sightings if number(event.fields.get("measure")) is not None]
        if len(told) >= _FEWEST and _cuts(told) and _wrong_way(story, rank, told):
            return _violation(rank, told)
    return None


def _rate(event: Event) -> float:
    listed = event.fields.get("lr")
    known = [rate for each in listed if (rate := number(each)) is not None] if isinstance(listed, list) else []
    return max(known, default=0.0)


def _cuts(told: list[Event]) -> bool:
    return _rate(told[-1]) < 0.9 * _rate(told[0])


def _wrong_way(story: Story, rank: int, told: list[Event]) -> bool:
    """The measure leaves its first value in the one direction, the loss falls, and better is said to be the other."""
    measures = np.array([number(event.fields.get("measure")) for event in told], float)
    sign = -1.0 if told[0].fields.get("mode") == "max" else 1.0
    losses = story.losses(rank).finite()
    before, after = losses.until(told[0].step), losses.since(told[-1].step)
    if not np.isfinite(measures).all() or len(losses) < _FEWEST or not len(before):
        return False
    if _are_losses(story, rank, measures) != (sign < 0):
        return False  # a loss that rises, or a score that falls, is what the schedule takes it for
    fell = float(np.median((after if len(after) else losses).values[-8:])) < 0.95 * float(np.median(before.values[-8:]))
    away = sign * (measures[1:] - measures[0])
    # A loss on held-out data falls before it rises; what is worse than its first value from then on never counted.
    return bool(fell and (away > 0).mean() > 0.9 and float(np.median(away)) > 0 and _rises(sign * measures))


def _rises(values: Floats) -> bool:
    early = values[: max(3, len(values) // 3)]
    return float(np.corrcoef(np.arange(len(early)), early)[0, 1]) > _CLEAR if np.ptp(early) > 0 else False


def _are_losses(story: Story, rank: int, measures: Floats) -> bool:
    """Whether the measure is the loss itself, of the training or of evaluations."""
    known = np.concatenate([story.losses(rank).values, curves.evaluations(story, rank).values])
    near = [bool(np.any(np.abs(known - value) <= 1e-6 * max(abs(value), 1e-9))) for value in measures]
    return sum(near) > len(near) / 2


def _violation(rank: int, told: list[Event]) -> Violation:
    first, last = told[0], told[-1]
    mode, values = first.fields.get("mode"), [number(event.fields.get("measure")) or 0.0 for event in told]
    cut = next((event for event in told if _rate(event) < 0.9 * _rate(first)), last)
    evidence = (first.id, cut.id, last.id)
    way = "lower" if mode != "max" else "higher"
    best = max(values) if mode != "max" else min(values)
    symptom = (
        f"the rate is cut from {_rate(first):.3g} to {_rate(last):.3g} while things get better: ReduceLROnPlateau "
        f"takes {way} for better (mode {mode!r}), and what it is told goes from {values[0]:.4g} to {best:.4g}"
    )
    text = (
        f"Each value counts as no better than the first ({values[0]:.4g}), so that the rate falls whatever is learnt."
    )
    return Violation(
        CONTRACT, "schedule", Severity.ERROR, symptom, cut.step, cut.step, "", "optimizer", rank, evidence,
        {"question": "Why does the rate fall?", "asked": "What is the schedule told?"}, "schedule-horizon-wrong", 0.9,
        _FOLLOW, (Because("Why is progress not seen?", text, "", evidence),),
        action=f"Build it with mode={'max' if mode != 'max' else 'min'!r}, or give it the loss.", static=True,
    )  # fmt: skip
