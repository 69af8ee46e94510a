"""FALSIFY-ALBOR-001, from a log: after warm-up the averaged loss falls, and no rise of more than 5 % lasts 500 steps.

Enters: the loss of a log. Leaves: the symptom ``diverged`` where it ends far above its start or loses what was learnt,
or where it stays more than 5 % above its lowest average for 500 steps or more; and what is worth knowing where it stops
falling.

Averages are exponential, over 100 steps however often the log has one. A rise counts only where it is more than the
noise of the points that tell of it. Where nothing tells steps (a row an epoch), 500 steps mean nothing: only a loss
that ends far above its start, or loses what it had gained, is told.
"""

from __future__ import annotations

import math

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import curves, outcomes
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track
from brickprof.rules.story.tracks import Floats

CONTRACT = "FALSIFY-ALBOR-001"
_FEWEST = 8
_EACH_WAY, _MANY = 3, 20
_SIGMAS = 6.0
_OF_START = 0.02
_USUAL_RISES = 2.0
_GRAVE = 0.5
_FEW_EVALUATIONS, _MANY_EVALUATIONS = 4, 10
_FAR = 3.0
_BOTTOMLESS = 1e3
_GROWN = 100.0
_SO_FAR = "Why does the loss fall so far?"


class LoggedTrend:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        limit = (
            f"no rise above {contract.threshold('rise') * 100:.3g} % that lasts {contract.threshold('lasting'):g} steps"
        )
        if seen is None or not (len(seen.finite) or seen.evaluations):
            return outcomes.vacuous(contract, "the log has no loss")
        if (violation := _bottomless(seen)) is not None:
            return outcomes.broken(contract, [violation], limit)
        if len(seen.finite) and (why := seen.level_says_nothing):
            return outcomes.unjudged(contract, why)
        if (violation := _evaluations_rise(seen)) is not None:
            return outcomes.broken(contract, [violation], limit)
        if len(seen.finite) < _FEWEST:
            return outcomes.unjudged(contract, f"{len(seen.finite)} logged losses are too few to see a trend")
        violation = _above_start(seen, contract) or _lost(seen, contract) or _turned(seen) or _rises(seen, contract)
        if violation is not None:
            return outcomes.broken(contract, [violation], limit)
        if not seen.by_steps:
            return outcomes.unjudged(
                contract, f"the log counts in {seen.unit}s: `brickprof run` records the loss of every step"
            )
        averaged = ema(seen.finite, contract.threshold("window"))
        since = _warm(seen)
        first, last = float(averaged[since]), float(averaged[-1])
        observed = f"averaged loss {show(first)} after warm-up, {show(last)} at the end"
        if last < first:
            return outcomes.held(contract, observed, limit)
        return outcomes.unjudged(contract, "the averaged loss did not fall, nor did it rise by more", observed)


def ema(found: Track, span: float) -> Floats:
    """The exponential average over ``span`` steps, at each logged point, however far apart they are."""
    values, steps = found.values, found.steps
    made = np.empty(len(values))
    mean = float(values[0])
    for place, value in enumerate(values.tolist()):
        apart = 1 if place == 0 else max(1, int(steps[place] - steps[place - 1]))
        keep = (1 - 2 / (span + 1)) ** apart
        mean = keep * mean + (1 - keep) * value
        made[place] = mean
    return made


def _warm(seen: View) -> int:
    """The place of the first loss after warm-up: where the rate has its peak, at most a tenth of the run."""
    steps = seen.finite.steps
    rates = seen.rates.finite()
    tenth = max(1, len(steps) // 10)
    if len(rates) < 2:
        return tenth
    peak = int(rates.steps[int(np.argmax(rates.values))])
    return min(max(int(np.searchsorted(steps, peak)), 1), max(tenth, 1) * 3, len(steps) - 1)


def _points(seen: View, steps: float) -> int:
    """How many logged points fall into so many steps; never fewer than five."""
    apart = np.diff(seen.finite.steps)
    usual = float(np.median(apart)) if len(apart) else 1.0
    return max(5, min(math.ceil(steps / max(usual, 1.0)), len(seen.finite)))


def _above_start(seen: View, contract: Contract) -> Violation | None:
    """Far above the first losses at the end, and not by noise."""
    values = seen.finite.values
    start = float(np.median(values[:3])) if len(values) >= 12 else float(values[0])
    reference = max(start, float(values[0]), contract.threshold("floor"))
    count = max(3, len(values) // 10)
    late = values[-count:]
    level = float(np.median(late))
    certain = float(late.min()) > reference and level - start > 3 * curves.spread(late)
    if level <= contract.threshold("factor") * reference or not certain:
        return None
    low = np.flatnonzero(values <= reference)
    place = min(int(low[-1]) + 1 if len(low) else 0, len(values) - 1)
    severity = Severity.ERROR if level > 2 * contract.threshold("factor") * reference else Severity.WARNING
    at = seen.at(int(seen.finite.steps[place]))
    symptom = f"loss rises from {show(start)} to {show(level)}, above its start from {at} on"
    return _diverged(seen, place, place, symptom, severity, start, level)


def _lost(seen: View, contract: Contract) -> Violation | None:
    """It fell, and lost more than half of what it had gained, to the end of the log."""
    values, count = seen.finite.values, max(5, len(seen.finite) // 20)
    if len(values) < 4 * count:
        return None
    means = _middles(values, count)
    best = int(np.argmin(means))
    low, last, start = float(means[best]), float(np.median(values[-count:])), float(means[0])
    gained, lost = start - low, last - low
    noise = max(curves.jitter(values), curves.spread(values[-count:])) / math.sqrt(count)
    stays = float(np.min(values[-count:])) > low + 0.3 * lost and len(means) - best > count
    if not (gained > 0.05 * start and lost > 0.5 * gained and last > contract.threshold("again") * low):
        return None
    if lost < 0.05 * start or lost < _SIGMAS * noise or not stays:
        return None
    rose = best + int(np.flatnonzero(means[best:] > low + 0.5 * lost)[0])
    steps = seen.finite.steps
    symptom = (
        f"loss fell to {show(low)} around {seen.at(int(steps[best + count // 2]))} and rose again to {show(last)}, "
        f"{lost / gained:.0%} of what it had gained"
    )
    severity = Severity.ERROR if lost > 0.8 * gained else Severity.WARNING
    return _diverged(seen, best + count - 1, rose + count - 1, symptom, severity, low, last)


def _turned(seen: View) -> Violation | None:
    """Of points too few for averages: it falls with each of them, then rises with each, and loses most of what it had
    gained. Noise does not do that."""
    values, steps = seen.finite.values, seen.finite.steps
    best = int(np.argmin(values))
    if len(values) >= _MANY or not _EACH_WAY <= best < len(values) - _EACH_WAY:
        return None
    one_way = bool(np.all(np.diff(values[: best + 1]) < 0)) and bool(np.all(np.diff(values[best:]) > 0))
    start, low, last = float(values[0]), float(values[best]), float(values[-1])
    gained, lost = start - low, last - low
    if not one_way or gained < 0.2 * start or lost < 0.5 * gained:
        return None
    symptom = (
        f"loss fell to {show(low)} at {seen.at(int(steps[best]))} and rose again to {show(last)}, "
        f"{lost / gained:.0%} of what it had gained"
    )
    severity = Severity.ERROR if lost > 0.8 * gained else Severity.WARNING
    return _diverged(seen, best, best + 1, symptom, severity, low, last)


def _rises(seen: View, contract: Contract) -> Violation | None:
    """More than 5 % above its lowest average for 500 steps or more, to the end of the log."""
    if not seen.by_steps or len(seen.finite) < 12:
        return None
    averaged = ema(seen.finite, contract.threshold("window"))
    steps, since = seen.finite.steps, _warm(seen)
    lowest = np.minimum.accumulate(averaged[since:])
    above = averaged[since:] > (1 + contract.threshold("rise")) * lowest
    if not above[-1]:
        return None
    begin = since + (int(np.flatnonzero(~above)[-1]) + 1 if bool((~above).any()) else 0)
    if int(steps[-1]) - int(steps[begin]) < contract.threshold("lasting"):
        return None
    count = _points(seen, contract.threshold("lasting"))
    late, values = seen.finite.values[-count:], seen.finite.values
    best = since + int(np.argmin(averaged[since:]))
    around = values[max(0, best - count // 2) : best + count // 2 + 1]
    low, level = float(np.median(around)), float(np.median(late))
    noise = curves.jitter(values) * math.sqrt(1 / len(around) + 1 / len(late))
    lost, start = level - low, float(np.median(values[:3]))
    if lost < contract.threshold("rise") * low or lost < _SIGMAS * noise or lost < _OF_START * start:
        return None
    if lost < _USUAL_RISES * low * _earlier_rise(averaged[since : best + 1]):
        return None  # it has risen like this before, and come back
    rates = seen.rates.finite()
    before, after = rates.until(int(steps[best])), rates.since(int(steps[best]))
    restarted = len(before) and len(after) and float(after.values.max()) > 1.2 * float(before.values[-1])
    symptom = (
        f"loss rose by {lost / low:.0%} from {show(low)} (around {seen.at(int(steps[best]))}) and stays there, "
        f"{show(level)} over the last {int(steps[-1]) - int(steps[begin]):,} steps"
    )
    if restarted:
        symptom += "; the learning rate rose meanwhile"
    severity = Severity.INFO if restarted else Severity.WARNING
    return _diverged(seen, best, begin, symptom, severity, low, level)


def _earlier_rise(averaged: Floats) -> float:
    """The largest rise above its lowest, as a share of it, that the averaged loss has come back from."""
    lowest = np.minimum.accumulate(averaged)
    return float((averaged / lowest - 1.0).max()) if len(averaged) and float(lowest.min()) > 0 else 0.0


def _evaluations_rise(seen: View) -> Violation | None:
    """No evaluation is as good as the first one, of many or by far, and the training loss does not fall either."""
    losses = seen.finite.values
    if len(losses) >= 3 and float(np.median(losses[-max(1, len(losses) // 3) :])) < 0.9 * float(losses[0]):
        return None
    for name, told in seen.evaluations.items():
        found = told.per_step().finite()
        values = found.values
        if len(values) < _FEW_EVALUATIONS or float(values[0]) <= 0:
            continue
        first, later = float(values[0]), values[1:]
        ever = bool(np.all(np.diff(values) > 0)) and float(values[-1]) >= _FAR * first
        never = len(values) >= _MANY_EVALUATIONS and float(later.min()) > 1.1 * first
        if ever or (never and float(np.median(later)) >= 1.25 * first):
            level = float(values[-1]) if ever else float(np.median(later[-3:]))
            symptom = f"no evaluation was as good as the first one: {name or 'evaluation loss'} {show(first)} at "
            symptom += f"{seen.at(int(found.steps[0]))}, {show(level)} at the end"
            return _diverged(seen, 1, len(values) - 1, symptom, Severity.WARNING, first, level, found)
    return None


def _bottomless(seen: View) -> Violation | None:
    """Below zero and ever further, by factors: no likelihood of labels has that, nor a distance."""
    found = seen.finite
    if len(found) < _FEWEST or seen.of_rewards or not bool(np.all(found.values < 0)):
        return None
    first, last = float(found.values[0]), float(found.values[-1])
    falls = float(np.mean(np.diff(found.values) < 0))
    if last > -_BOTTOMLESS or last > _GROWN * first or falls < 0.8:
        return None
    proof = found.evidences((0, len(found) // 2, len(found) - 1))
    symptom = f"loss falls below zero without end: {show(first)} at the start, {show(last)} at the end"
    text = "A cross-entropy of labels, or a distance, is never below zero: its targets are none that it is made for "
    text += "(outside of 0 to 1, class numbers for probabilities), or its sign is turned round."
    return Violation(
        CONTRACT, "bottomless", Severity.WARNING, symptom, int(found.steps[0]), int(found.steps[_FEWEST - 1]), "loss",
        "step", seen.rank, proof, cause="loss-input-mismatch", certainty=0.6, static=True,
        whys=(Because("What has no lower end?", text, "loss", proof),),
        details={"logged": True, "question": _SO_FAR, "asked": _SO_FAR},
        action="Compare the range of the targets with what the loss function expects, and look for a minus sign.",
    )  # fmt: skip


def _middles(values: Floats, count: int) -> Floats:
    windows = np.lib.stride_tricks.sliding_window_view(values, count)
    made: Floats = np.median(windows, axis=1)
    return made


def _diverged(
    seen: View, place: int, detected: int, symptom: str, severity: Severity, start: float, level: float,
    told: Track | None = None,
) -> Violation:  # fmt: skip
    found = seen.finite if told is None else told
    detected = min(max(detected, place), len(found) - 1)
    proof = found.evidences((0, place, detected, len(found) - 1))
    details = {"logged": True, "question": "Why does the loss rise?", "start": start, "level": level,
               "step": int(found.steps[place]), "by_evaluation": told is not None}  # fmt: skip
    return Violation(
        CONTRACT, "diverged", severity, symptom, int(found.steps[place]), int(found.steps[detected]), "loss", "step",
        seen.rank, proof, details,
    )  # fmt: skip


RULE = LoggedTrend
