"""C-LEARN-001: the loss leaves the level of guessing. FALSIFY-ALBOR-001: after warm-up it falls and stays down.

Enters: the story. Leaves: the symptoms ``not-learning`` (at the level of guessing although the weights have travelled
far), ``diverged`` (far above its start, or most of what was learnt is lost again) and ``plateau``.

A flat loss alone proves nothing: adversaries balance, fine-tuning starts at its optimum, labels have a floor of
noise, warm-up takes its time. So flat counts only at the level of guessing, and only after the weights have moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.rules import curves, wording
from brickprof.rules.curves import Chance, Curve, evaluations
from brickprof.rules.story import Story
from brickprof.rules.story.tracks import Floats, Ints, Track

LEARN, TREND = "C-LEARN-001", "FALSIFY-ALBOR-001"
_LEAP = 3
"""Steps that a leap may take."""


class Learning:
    contract = LEARN

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        wanted = "below the level of guessing"
        if not story.trained:
            return ContractResult(LEARN, Verdict.VACUOUS, "", wanted, "no training was observed")
        answers = [self._of(story, rank, contract) for rank in story.ranks]
        broken = [answer for answer in answers if answer.verdict is Verdict.FAIL]
        passed = [answer for answer in answers if answer.verdict is Verdict.PASS]
        return (broken or passed or answers)[0]

    def _of(self, story: Story, rank: int, contract: Contract) -> ContractResult:
        since, _ = curves.stage(story, rank)
        curve, chance = curves.curve(story, rank), curves.chance(story, rank, since)
        curve = replace(curve, track=curve.track.since(since)) if since else curve
        least = int(contract.threshold("steps"))
        if not curve.comparable:
            return _open(f"{curve.why_not}: their level says nothing about learning")
        if chance is None:
            return _open("what guessing would cost is not known: no cross-entropy was seen")
        if len(curve) < least:
            return _open(f"{wording.count(len(curve), 'loss', 'losses')}; fewer than {least} say too little")
        violation = _at_chance(story, curve, chance, contract)
        limit = f"below {chance.level:.4g} (guessing among {chance.classes:,} classes)"
        observed = f"{curve.tail(len(curve) // 4):.4g} at the end"
        if violation is not None:
            return ContractResult(LEARN, Verdict.FAIL, observed, limit, violation.symptom, (violation,))
        if curve.tail(len(curve) // 4) < (1 - contract.threshold("band")) * chance.lowest:
            return ContractResult(LEARN, Verdict.PASS, observed, limit)
        return _open("still near the level of guessing, and not yet long enough to say why")


def _open(why: str) -> ContractResult:
    return ContractResult(LEARN, Verdict.NOT_EVALUATED, "", "below the level of guessing", why)


def _at_chance(story: Story, curve: Curve, chance: Chance, contract: Contract) -> Violation | None:
    rank = curve.track.rank
    since, optimizer = curves.stage(story, rank)
    way, rates = travel(story, rank, since), story.rates(rank, optimizer)
    travelled = way.until(story.steps(rank) - 1)
    if _warming_up(rates) or not _stuck(curve.values, chance, travelled, contract):
        return None
    seen = _seen_after(curve, chance, way, rates, contract)
    return _not_learning(curve, chance, travelled, way.evidence, seen)


def _stuck(values: Floats, chance: Chance, travelled: float | None, contract: Contract) -> bool:
    """Whether these losses stay at the level of guessing, after the weights moved ``travelled``."""
    settled, band = values[len(values) // 4 :], contract.threshold("band")
    lowest, level = (1 - band) * chance.lowest, float(np.median(settled))
    moved = travelled is not None and travelled >= contract.threshold("travelled")
    if not moved and len(values) < contract.threshold("steps_without_travel"):
        return False
    if not lowest <= level <= (1 + 3 * band) * chance.level or _falls(settled, contract):
        return False
    return float(np.median(values[-max(1, len(values) // 8) :])) >= lowest


def _seen_after(curve: Curve, chance: Chance, way: Travel, rates: Track, contract: Contract) -> int:
    """After how many losses the same judgement was possible, with what was known of the weights and the rate then."""

    def told(count: int) -> bool:
        step = curve.step(count - 1)
        return _stuck(curve.values[:count], chance, way.until(step), contract) and not _warming_up(rates.until(step))

    last, count = int(contract.threshold("steps")) - 1, int(contract.threshold("steps"))
    while count < len(curve) and not told(count):
        last, count = count, count + max(1, count // 16)
    between = range(last + 1, min(count, len(curve)))
    return next((each for each in between if told(each)), min(count, len(curve)))


def _falls(settled: Floats, contract: Contract) -> bool:
    """Whether the loss falls for certain; in a long run also whether the fall is worth its name."""
    if curves.slope(settled) >= -contract.threshold("falling"):
        return False
    quarter = max(1, len(settled) // 4)
    fallen = float(np.median(settled[:quarter]) - np.median(settled[-quarter:]))
    long = len(settled) >= 0.75 * contract.threshold("steps_without_travel")
    return not long or fallen > contract.threshold("fall") * abs(float(np.median(settled)))


def _not_learning(
    curve: Curve, chance: Chance, travelled: float | None, evidence: tuple[str, ...], seen: int
) -> Violation:
    level = float(np.median(curve.values[len(curve) // 4 :]))
    guess = chance.level if level > 0.97 * chance.level else chance.lowest
    shown = f"loss stays at {level:.4g}, what guessing among {chance.classes:,} classes costs ({guess:.4g})"
    last = seen - 1
    proof = (*curve.track.evidences((0, last, len(curve) - 1)), chance.evidence, *evidence)
    details = {
        "question": "Why does the loss not fall?", "level": level, "chance": chance.level, "classes": chance.classes,
        "travelled": travelled, "at_chance": True,
    }  # fmt: skip
    return Violation(
        LEARN, "not-learning", Severity.WARNING, f"{shown} for {len(curve):,} steps", curve.step(0),
        curve.step(last), "loss", "step", curve.track.rank, tuple(dict.fromkeys(proof)), details,
    )  # fmt: skip


class Travel(NamedTuple):
    """How far the weights went, in lengths of themselves: what was seen of the updates, over all steps."""

    since: int
    steps: Ints
    """The steps in which updates were looked at."""
    typical: Floats
    """The update over the weight, in the middle of all tensors, in each of them."""
    evidence: tuple[str, ...] = ()

    def until(self, step: int) -> float | None:
        """As it was known at the end of ``step``; None where no update had been looked at."""
        seen = self.typical[: int(np.searchsorted(self.steps, step, side="right"))]
        return float(np.median(seen)) * (step + 1 - self.since) if len(seen) else None


def travel(story: Story, rank: int, since: int = 0) -> Travel:
    grid = story.grid("update", rank)
    nothing = Travel(since, np.empty(0, dtype=np.int64), np.empty(0))
    if not len(grid):
        return nothing
    with np.errstate(all="ignore"):
        ratios = np.where(np.isfinite(grid.ratio) & (grid.steps >= since)[:, None], grid.ratio, np.nan)
        looked = np.any(np.isfinite(ratios), axis=1)
        if not looked.any():
            return nothing
        typical = np.nanmedian(ratios[looked], axis=1)
    place = int(np.nanargmax(ratios[looked][-1]))
    evidence = grid.evidence(int(np.flatnonzero(looked)[-1]), place)
    return Travel(since, grid.steps[looked], typical, (evidence,))


def _warming_up(rates: Track) -> bool:
    """The rate still rises: what it will do to the loss is not seen yet."""
    if len(rates) < 8:
        return False
    return float(rates.values[-1]) > 1.05 * float(rates.values[len(rates) * 3 // 4])


class Trend:
    contract = TREND

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        limit = f"no lasting rise above {contract.threshold('rise') * 100:.3g} %"
        if not story.trained:
            return ContractResult(TREND, Verdict.VACUOUS, "", limit, "no training was observed")
        found = [curves.curve(story, rank) for rank in story.ranks]
        longest = max(found, key=len)
        violations = [violation for curve in found for violation in _trend(story, curve, contract)][:1]
        if violations and violations[0].severity is not Severity.INFO:
            seen = violations[0].symptom
            return ContractResult(TREND, Verdict.FAIL, seen, limit, seen, tuple(violations))
        if not longest.comparable:
            return ContractResult(TREND, Verdict.NOT_EVALUATED, "", limit, longest.why_not)
        return replace(_fallen(longest, limit, contract), violations=tuple(violations))


def _fallen(curve: Curve, limit: str, contract: Contract) -> ContractResult:
    window = int(contract.threshold("window"))
    if len(curve) < 2 * window:
        why = f"{wording.count(len(curve), 'loss', 'losses')}: at least {2 * window} are needed to see a trend"
        return ContractResult(TREND, Verdict.NOT_EVALUATED, "", limit, why)
    first, last = float(curve.values[:window].mean()), float(curve.values[-window:].mean())
    observed = f"mean of {window} losses from {first:.4g} to {last:.4g}"
    if last < first:
        return ContractResult(TREND, Verdict.PASS, observed, limit)
    return ContractResult(TREND, Verdict.NOT_EVALUATED, observed, limit, "the loss did not fall, nor did it rise")


def _trend(story: Story, curve: Curve, contract: Contract) -> list[Violation]:
    if curve.signed:
        return []
    violation = _leapt(curve, contract)
    if violation is None and len(curve) < int(contract.threshold("points")):
        return []
    chance = curves.chance(story, curve.track.rank)
    violation = violation or _above_start(curve, chance, contract)
    if violation is None and not curve.several and not curve.phases:
        violation = _lost_again(story, curve, contract) or _plateau(story, curve, chance, contract)
    return [violation] if violation is not None else []


def _leapt(curve: Curve, contract: Contract) -> Violation | None:
    """So far above all that came before, within a few steps, that there is nothing to wait for, unless it came back."""
    if curve.several or curve.phases or len(curve) < 2:
        return None
    leap, highest = contract.threshold("leap"), np.maximum.accumulate(curve.values)
    usual = np.maximum(highest[np.maximum(np.arange(len(curve)) - _LEAP, 0)], contract.threshold("floor"))
    places = np.flatnonzero(curve.values > leap * usual)
    if not len(places) or float(curve.values[places[0] :].min()) <= float(usual[places[0]]) * np.sqrt(leap):
        return None
    place = int(places[0])
    start, level = float(usual[place]), float(curve.values[place])
    symptom = f"loss leaps from {start:.4g} to {level:.4g} by step {curve.step(place):,}"
    return _diverged(curve, max(place - _LEAP, 1), place, symptom, Severity.ERROR, {"start": start, "level": level})


def _above_start(curve: Curve, chance: Chance | None, contract: Contract) -> Violation | None:
    """Far above the first loss at the end of what is known, and not by noise."""
    factor = contract.threshold("factor_of_adversaries" if curve.several else "factor")
    first = float(curve.values[0])
    reference = max(first, contract.threshold("floor"), chance.level if chance and not curve.several else 0.0)
    count = max(3, len(curve) // 10)
    last = curve.values[-count:]
    level = float(np.median(last))
    certain = float(last.min()) > reference and level - first > 3 * curves.spread(last)
    if level <= factor * reference or not certain:
        return None
    low = np.flatnonzero(curve.values <= max(reference, first))
    place = min(int(low[-1]) + 1 if len(low) else 0, len(curve) - 1)
    severity = Severity.ERROR if level > 3 * factor * reference else Severity.WARNING
    symptom = f"loss rises from {first:.4g} to {level:.4g}, above its start from step {curve.step(place):,} on"
    return _diverged(curve, place, place + max(3, place // 10) - 1, symptom, severity, {"start": first, "level": level})


def _lost_again(story: Story, curve: Curve, contract: Contract) -> Violation | None:
    """It fell, and then rose and stays there: by more than half of what it had gained, or by less for very long."""
    window = max(10, min(len(curve) // 20, int(contract.threshold("window"))))
    if len(curve) < 6 * window:
        return None
    means = curves.smooth(curve.values, window)
    best = int(np.argmin(means))
    low, last, since = float(means[best]), float(means[-1]), means[best:]
    gained, lost = float(means[0]) - low, last - low
    grown = last > contract.threshold("again") * low and lost > 0.5 * gained and lost > 0.05 * float(means[0])
    crept = lost > contract.threshold("rise") * float(means[0]) and _crept(story, curve, best, contract)
    certain = lost > 8 * max(curve.noise, curves.spread(curve.values[-window:])) / np.sqrt(window)
    stays = len(since) > 3 * window and last >= low + 0.8 * (float(since.max()) - low)
    if not ((grown or crept) and certain and stays and gained > 0):
        return None
    place = best + int(np.flatnonzero(since > low + 0.5 * lost)[0])
    symptom = f"loss fell to {low:.4g} around step {curve.step(best):,} and rose again to {last:.4g}"
    details = {"start": low, "level": last}
    return _diverged(curve, best + window - 1, place + window - 1, symptom, Severity.WARNING, details)


def _crept(story: Story, curve: Curve, best: int, contract: Contract) -> bool:
    """A small rise counts when it lasts, and when no higher rate (a restart) accounts for it."""
    if len(curve) - best < int(contract.threshold("lasting")):
        return False
    rates = story.rates(curve.track.rank)
    before, after = rates.until(curve.step(best)), rates.since(curve.step(best))
    if not len(before) or not len(after):
        return False
    return float(after.values.max()) <= 1.01 * float(before.values[-1])


def _diverged(
    curve: Curve, place: int, detected: int, symptom: str, severity: Severity, details: dict[str, float]
) -> Violation:
    detected = min(detected, len(curve) - 1)
    proof = curve.track.evidences((0, place, detected, len(curve) - 1))
    told = {"question": "Why does the loss rise?", **details}
    return Violation(
        TREND, "diverged", severity, symptom, curve.step(place), curve.step(detected), "loss", "step",
        curve.track.rank, proof, told,
    )  # fmt: skip


def _plateau(story: Story, curve: Curve, chance: Chance | None, contract: Contract) -> Violation | None:
    """Worth knowing, no more: it fell at first, and the second half of the run brought nothing."""
    if len(curve) < int(contract.threshold("plateau")):
        return None
    half = curve.values[len(curve) // 2 :]
    level, start = float(np.median(half)), curve.start
    fell = level < 0.95 * start and start - level > 3 * curves.spread(half)
    lowest = 0.02 if _evaluations_rest(story, curve) else 0.2
    guessing = chance is not None and level > 0.95 * chance.lowest
    if not fell or guessing or level < lowest * start or curves.slope(half) < -2:
        return None
    place = len(curve) // 2
    symptom = f"loss fell from {start:.4g} to {level:.4g} and has not moved since step {curve.step(place):,}"
    details = {"question": "Why does the loss stop falling?", "start": start, "level": level}
    return Violation(
        TREND, "plateau", Severity.INFO, symptom, curve.step(place), curve.step(len(curve) - 1), "loss", "step",
        curve.track.rank, curve.track.evidences((0, place, len(curve) - 1)), details,
    )  # fmt: skip


def _evaluations_rest(story: Story, curve: Curve) -> bool:
    """Whether evaluations of the second half brought nothing either."""
    held = evaluations(story, curve.track.rank)
    before, after = held.until(curve.step(len(curve) // 2)), held.since(curve.step(len(curve) // 2))
    if len(before) < 3 or len(after) < 3:
        return False
    return float(after.values.min()) > 0.98 * float(before.values.min())


RULES = (Learning, Trend)
