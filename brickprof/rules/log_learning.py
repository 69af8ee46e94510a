"""C-LEARN-001, from a log: the loss leaves the level it starts at.

Enters: the loss of a log that begins where the training does, its evaluations and other measures, and the settings it
states. Leaves: the symptom ``not-learning`` where nothing fell: not the loss, not an evaluation, no measure got better,
over hundreds of steps, and the fitted curve says that nothing will.

A flat loss alone proves nothing: fine-tuning begins at its optimum. It counts where the level is one of knowing
nothing: the logarithm of the number of classes, or so high that no model that was trained before stands there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.logs.reading import names
from brickprof.rules import curves, outcomes, scaling_curve
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-LEARN-001"
_LEAST = {"step": (20, 500), "epoch": (10, 9), "row": (100, 99)}
"""Points, and steps, epochs or rows from the first to the last. A row may be an epoch, or only a batch."""
_FELL = 0.025
_CLEARLY = 0.05
_KNOWS_NOTHING = 3.9
"""A loss in nats that a model which was trained before begins below: an even guess among fifty."""
_USUAL_CLASSES = (2, 10, 100, 1000)
_COUNTS = ("vocab_size", "padded_vocab_size", "num_classes", "n_classes", "num_labels", "nb_classes")
_AT = 0.01


class LoggedLearning:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not len(seen.finite):
            return outcomes.vacuous(contract, "the log has no loss")
        if why := seen.level_says_nothing:
            return outcomes.unjudged(contract, why)
        found = seen.finite
        points, reach = _LEAST[seen.unit]
        if len(found) < points or int(found.steps[-1] - found.steps[0]) < reach:
            return outcomes.unjudged(
                contract, f"{len(found)} losses over {int(np.ptp(found.steps)):,} {seen.unit}s: too few"
            )
        fell = fall(found)
        observed = f"from {show(_start(found))} to {show(_end(found))}"
        if fell >= _FELL:
            return outcomes.held(contract, observed, f"falls by more than {_FELL:.1%}")
        if not seen.from_the_start:
            return outcomes.unjudged(contract, "the log does not begin where the training does", observed)
        if improved := better(seen):
            return outcomes.unjudged(contract, f"the loss is flat, but {improved} got better", observed)
        if len(seen.rates) >= 8 and float(seen.rates.values[-1]) > 1.05 * float(
            seen.rates.values[len(seen.rates) * 3 // 4]
        ):
            return outcomes.unjudged(contract, "the learning rate still rises", observed)
        said, severity, proof = _level(seen)
        if severity is Severity.INFO:
            return outcomes.unjudged(contract, f"the loss is flat; {said}", observed)
        violation = _not_learning(seen, fell, said, severity, proof)
        return outcomes.broken(contract, [violation], f"falls by more than {_FELL:.1%}")


def _start(found: Track) -> float:
    return float(np.median(found.values[: max(3, len(found) // 20)]))


def _end(found: Track) -> float:
    return float(np.median(found.values[-max(3, len(found) // 3) :]))


def fall(found: Track) -> float:
    """By which part of its start the loss fell, at its best over a good stretch; below zero where it rose."""
    count = max(3, len(found) // 10)
    windows = np.lib.stride_tricks.sliding_window_view(found.values, min(count, len(found)))
    lowest, start = float(np.median(windows, axis=1).min()), _start(found)
    start = max(start, float(found.values[0]) if len(found) < 40 else start)
    return (start - max(lowest, min(_end(found), lowest * 1.01))) / start if start > 0 else 0.0


def better(seen: View) -> str:
    """An evaluation or a measure that improved meanwhile."""
    for name, found in seen.evaluations.items():
        known = found.finite().values
        if len(known) >= 3 and float(known[-1]) < (1 - _FELL) * float(known[0]):
            return name
    for name, found in seen.measures("quality").items():
        known = found.finite().values
        if len(known) < 6:
            continue
        third = len(known) // 3
        first, last = float(np.median(known[:third])), float(np.median(known[-third:]))
        gain = (first - last) if names.falls(name) else (last - first)
        if gain > max(_CLEARLY * abs(first), 3 * curves.jitter(known) / math.sqrt(third)):
            return name
    return ""


def _level(seen: View) -> tuple[str, Severity, tuple[str, ...]]:
    """What the level of the loss is, in words, and how grave that is."""
    level = _end(seen.finite)
    for key in _COUNTS:
        told = seen.settings.get(key)
        if told is not None and isinstance(told[0], int | float) and told[0] >= 2:
            guess = math.log(float(told[0]))
            if level > 0.97 * guess:
                return f"guessing among {told[0]:,} costs {guess:.4g}", Severity.ERROR, (told[1],)
            if level > 0.6 * guess:
                return f"guessing among {told[0]:,} costs {guess:.4g}", Severity.WARNING, (told[1],)
    steady = curves.spread(seen.finite.values) < _CLEARLY * level
    for classes in _USUAL_CLASSES:
        if steady and abs(level - math.log(classes)) < _AT * math.log(classes):
            return (
                f"ln {classes:,} = {math.log(classes):.4g} is what guessing among {classes:,} costs",
                Severity.WARNING,
                (),
            )
    if level >= _KNOWS_NOTHING:
        even = (
            f"an even guess among {math.exp(min(level, 30)):,.0f} costs as much"
            if level < 16
            else "far above any guess"
        )
        return f"{even}: no model that knows anything stands there", Severity.WARNING, ()
    return "whether that is its optimum, the log does not say", Severity.INFO, ()


def _not_learning(seen: View, fell: float, said: str, severity: Severity, proof: tuple[str, ...]) -> Violation:
    found = seen.finite
    start, end = _start(found), _end(found)
    reach = int(found.steps[-1] - found.steps[0])
    symptom = f"loss went from {show(start)} to {show(end)} in {reach:,} {seen.unit}s: nothing is learnt"
    fit = scaling_curve.scaling_fit(found.steps.astype(float), found.values)
    then: list[Because] = [Because("What does the level say?", f"It stays at {show(end)}; {said}.", "",
                                   (*found.evidences((0, len(found) - 1)), *proof))]  # fmt: skip
    if fit is not None:
        then.append(_fitted(seen, fit))
    details: dict[str, Any] = {"logged": True, "question": "Why does the loss not fall?", "then": tuple(then),
                               "fell": fell, "step": int(found.steps[0])}  # fmt: skip
    return Violation(
        CONTRACT, "not-learning", severity, symptom, int(found.steps[0]), int(found.steps[-1]), "loss", "step",
        seen.rank, found.evidences((0, len(found) // 2, len(found) - 1)), details,
    )  # fmt: skip


def _fitted(seen: View, fit: scaling_curve.ScalingFit) -> Because:
    last = float(seen.finite.steps[-1])
    middle, low, high = fit.forecast(10 * last)
    moves = "no slope that its uncertainty leaves" if not fit.falls else f"a slope of {fit.b:.2g} for each factor e"
    text = (
        f"L = a - b ln D has {moves} (b = {fit.b:.2g} +- {fit.b_error:.1g}): ten times as many {seen.unit}s would "
        f"bring it to {show(middle)} ({show(low)} to {show(high)})."
    )
    proof = seen.finite.evidences((len(seen.finite) // 10, len(seen.finite) - 1))
    return Because("Would more of the same help?", text, "", proof)


RULE = LoggedLearning
