"""C-LOSSSPIKE-001: the loss does not jump out of its noise, or it comes back.

Enters: the story. Leaves: the symptom ``spike``: one violation for the worst jump, with how often it happened and
whether the loss came back. A jump is measured against the median and the median deviation of the steps before it, with
a margin that heavy-tailed losses of tiny batches do not reach in ten thousand steps. One jump that recovers is worth
knowing; one that does not, many, or one that leaves even an untrained model's loss far behind are worth a look. Where
the learning rate had just left all the rates before it behind, nobody has to wait and see whether the loss recovers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.rules import curves, wording
from brickprof.rules.curves import Curve
from brickprof.rules.story import Story
from brickprof.rules.story.tracks import Floats, Track

CONTRACT = "C-LOSSSPIKE-001"
_AT_ONCE = 2
_MANY = 10.0
"""Times its level: what a rate that leapt has done to the loss where it did harm."""


class Jump(NamedTuple):
    place: int
    before: float
    """The level it jumped from."""
    peak: float
    back: int | None
    """After how many steps the loss was back; None when it never was."""


class Spikes:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        limit = f"within {contract.threshold('deviations'):g} deviations of the steps before"
        if not story.trained:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", limit, "no training was observed")
        found = [curves.curve(story, rank) for rank in story.ranks]
        judged = [curve for curve in found if not curve.several and len(curve) > contract.threshold("window")]
        violations = [
            violation for curve in judged
            if (violation := _violation(story, curve, contract)) is not None
        ]  # fmt: skip
        if violations and violations[0].severity is not Severity.INFO:
            seen = violations[0].symptom
            return ContractResult(CONTRACT, Verdict.FAIL, seen, limit, seen, tuple(violations[:1]))
        if not judged:
            why = "too few losses, or several in a step"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", limit, why)
        losses = wording.count(sum(len(curve) for curve in judged), "loss", "losses")
        observed = violations[0].symptom if violations else f"{losses} without a jump that stays"
        return ContractResult(CONTRACT, Verdict.PASS, observed, limit, "", tuple(violations[:1]))


def jumps(curve: Curve, contract: Contract) -> list[Jump]:
    """Every jump upwards, the steps until it is over counted to it."""
    values, window = curve.values, int(contract.threshold("window"))
    if len(values) <= window:
        return []
    candidates = _candidates(curve, window, contract)
    found: list[Jump] = []
    until = -1
    for place in candidates.tolist():
        if place <= until:
            continue
        before = values[max(0, place - window) : place]
        jump = _jump(curve, place, before)
        found.append(jump)
        until = place + (jump.back if jump.back is not None else len(values))
    return found


def _candidates(curve: Curve, window: int, contract: Contract) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    values = curve.values
    seen = np.lib.stride_tricks.sliding_window_view(values[:-1], window)
    middle = np.median(seen, axis=1)
    deviation = curves.SIGMA * np.median(np.abs(seen - middle[:, None]), axis=1)
    size = np.maximum(deviation, 0.05 * np.abs(middle))
    # What a loss that is all but zero does is of no interest: the scale is that of the run.
    size = np.maximum(size, 0.01 * abs(curve.start))
    tall = values[window:] - middle > contract.threshold("deviations") * size
    beyond = values[window:] > np.max(seen, axis=1) + 0.5 * contract.threshold("deviations") * size
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.flatnonzero(tall & beyond) + window
    return found


def _jump(curve: Curve, place: int, before: Floats) -> Jump:
    level = float(np.median(before))
    size = max(curves.spread(before), 0.05 * abs(level), 0.01 * abs(curve.start))
    after = curve.values[place + 1 :]
    calm = np.flatnonzero(after <= level + 4 * size)
    back = int(calm[0]) + 1 if len(calm) else None
    peak = float(curve.values[place : place + (back or len(curve))].max())
    return Jump(place, level, peak, back)


def _violation(story: Story, curve: Curve, contract: Contract) -> Violation | None:
    beginnings = curves.beginnings(story, curve.track.rank)
    found = [
        jump for jump in jumps(curve, contract)
        if not any(abs(curve.step(jump.place) - begun) <= _AT_ONCE for begun in beginnings)
    ]  # fmt: skip
    if not found:
        return _after_a_leap(story, curve, contract)
    left = len(curve) - 1 - found[-1].place
    lasting = [jump for jump in found if _lasting(jump, left, contract) and not _learns_again(story, curve, jump)]
    often = len(found) >= contract.threshold("often") and not curve.phases and _apart(curve, found, contract)
    worst = lasting[0] if lasting else max(found, key=lambda jump: jump.peak - jump.before)
    far = [jump for jump in found if _is_extreme(curve, jump, contract)]
    extreme = worst in far
    block = _block(curve, worst)
    driven = worst.back is None and _rate_leapt(story, curve, worst, contract)
    severity = (
        Severity.WARNING if (lasting and not curve.phases) or often or extreme or block or driven else Severity.INFO
    )
    if severity is Severity.INFO and (after := _after_a_leap(story, curve, contract)) is not None:
        return after
    first = found[0] if often and not lasting else far[0] if extreme and not lasting else worst
    seen = (
        far[0].place
        if extreme and not lasting
        else first.place
        if extreme or driven
        else first.place + int(contract.threshold("recovery"))
        if lasting
        else first.place
    )
    if often and not (extreme or lasting or driven):
        seen = found[int(contract.threshold("often")) - 1].place
    proof = curve.track.evidences((max(0, worst.place - 1), worst.place, min(worst.place + 1, len(curve) - 1)))
    details = {
        "question": "Why did the loss jump?", "recovered": not lasting, "jump": worst.place, "times": len(found),
        "steps": [curve.step(jump.place) for jump in found[:64]], "before": worst.before, "peak": worst.peak,
        "at": curve.step(worst.place), "block": worst.back if block else 0, "back": worst.back,
    }  # fmt: skip
    return Violation(
        CONTRACT, "spike", severity, _told(curve, worst, len(found)), curve.step(first.place),
        curve.step(min(seen, len(curve) - 1)), "loss", "step", curve.track.rank, proof, details,
    )  # fmt: skip


def _is_extreme(curve: Curve, jump: Jump, contract: Contract) -> bool:
    """Whether a jump leaves even the loss of an untrained model far behind: one look at it is enough."""
    return jump.peak > contract.threshold("extreme") * max(curve.start, jump.before) and not curve.signed


def _after_a_leap(story: Story, curve: Curve, contract: Contract) -> Violation | None:
    """A loss that is small against its start, and many times its level right after the rate left all before behind."""
    rates, window = story.rates(curve.track.rank).finite(), int(contract.threshold("window"))
    highest = np.maximum.accumulate(rates.values)
    leaps = np.flatnonzero(rates.values[1:] >= contract.threshold("leap") * highest[:-1]) + 1
    for leap in leaps.tolist():
        begin = int(np.searchsorted(curve.track.steps, rates.steps[leap], side="right"))
        before, after = curve.values[max(0, begin - window) : begin], curve.values[begin : begin + window]
        if len(before) < window or not len(after) or curve.signed:
            continue
        level, size = float(np.median(before)), max(curves.spread(before), 0.05 * abs(float(np.median(before))))
        high = np.flatnonzero(after > max(_MANY * level, level + contract.threshold("deviations") * size))
        if len(high):
            place = begin + int(high[0])
            calm = np.flatnonzero(curve.values[place + 1 :] <= level + 4 * size)
            jump = Jump(place, level, float(after.max()), int(calm[0]) + 1 if len(calm) else None)
            return _leapt(curve, rates, leap, jump)
    return None


def _leapt(curve: Curve, rates: Track, leap: int, jump: Jump) -> Violation:
    place, level, peak = jump.place, jump.before, jump.peak
    step, proof = curve.step(place), (rates.evidence(leap), *curve.track.evidences((max(0, place - 1), place)))
    symptom = f"loss jumped from {level:.4g} to {peak:.4g} right after step {int(rates.steps[leap]):,}"
    details = {"question": "Why did the loss jump?", "recovered": jump.back is not None, "jump": place, "times": 1,
               "steps": [step], "before": level, "peak": peak, "at": step, "block": 0, "back": jump.back}  # fmt: skip
    return Violation(CONTRACT, "spike", Severity.WARNING, symptom, step, step, "loss", "step", curve.track.rank, proof,
                     details)  # fmt: skip


def _rate_leapt(story: Story, curve: Curve, jump: Jump, contract: Contract) -> bool:
    """Whether the rate of the steps right before is a multiple of every rate before them: no warm-up, no restart."""
    rates, at = story.rates(curve.track.rank).finite(), curve.step(jump.place)
    just = (rates.steps >= at - _AT_ONCE) & (rates.steps < at)
    ever = rates.values[rates.steps < at - _AT_ONCE]
    if not just.any() or not len(ever):
        return False
    return float(rates.values[just].max()) >= contract.threshold("leap") * float(ever.max()) > 0


def _block(curve: Curve, jump: Jump) -> bool:
    """Several steps in a row far up, and from one step to the next back where it was: weights do not recover so."""
    if jump.back is None or jump.back < 3 or curve.signed or jump.peak < 2 * jump.before:
        return False
    up = curve.values[jump.place : jump.place + jump.back]
    return float(up.min()) > jump.before + 0.5 * (jump.peak - jump.before)


def _apart(curve: Curve, found: list[Jump], contract: Contract) -> bool:
    """Whether jumps are a kind of their own, with a gap to everything else: heavy tails have none."""
    window = int(contract.threshold("window"))
    middle = np.median(np.lib.stride_tricks.sliding_window_view(curve.values[:-1], window), axis=1)
    height = curve.values[window:] - middle
    calm = np.ones(len(height), bool)
    for jump in found:
        calm[jump.place - window : jump.place - window + (jump.back or len(height))] = False
    lowest = min(float(height[jump.place - window]) for jump in found)
    return bool(calm.any()) and lowest > 2 * float(height[calm].max())


def _learns_again(story: Story, curve: Curve, jump: Jump) -> bool:
    """No higher than an untrained model, and falling again: new data or a new task, and it is being learnt.

    How high an untrained model stands is known of the old task only.
    """
    if jump.peak > 3 * curve.start and not _other_samples(story, curve, jump):
        return False
    after = curve.values[jump.place :]
    return jump.back is not None or (curves.slope(after) < -4 and float(after[-5:].mean()) < 0.7 * jump.peak)


def _other_samples(story: Story, curve: Curve, jump: Jump) -> bool:
    """Whether samples had one shape until the jump, and have another since."""
    at = curve.step(jump.place)
    told = [
        (event.step, tuple(shape)) for event in story.events("targets", curve.track.rank)
        if isinstance(shape := event.fields.get("sample"), list) and all(isinstance(size, int) for size in shape)
    ]  # fmt: skip
    before = {shape for step, shape in told if step < at}
    after = next((shape for step, shape in told if step >= at), None)
    return len(before) == 1 and after is not None and after not in before


def _lasting(jump: Jump, left: int, contract: Contract) -> bool:
    patience = int(contract.threshold("recovery"))
    return left >= patience if jump.back is None else jump.back > patience


def _told(curve: Curve, worst: Jump, times: int) -> str:
    text = f"loss jumped from {worst.before:.4g} to {worst.peak:.4g} at step {curve.step(worst.place):,}"
    if worst.back is None:
        text += " and has not come back"
    else:
        text += f" and was back after {wording.count(worst.back, 'step')}"
    return text if times == 1 else f"{text}; {times:,} such jumps"


RULE = Spikes
