"""Why a run ran away: the learning rate, the missing warm-up, or the model's own gradients.

Enters: the symptoms nonfinite, diverged, exploding, not-learning, and what led up to them. Leaves: hypotheses for

    learning-rate-too-high   warmup-missing   exploding-gradients

What tells them apart is what was wrong first. Updates of the size of the weights while gradients were ordinary speak
for the rate; gradients that would move the loss by thousands of its own size before any update speak for the model;
a rate that is right later on, and was not led up to, speaks for the warm-up.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis import growth
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.diagnosis.onset import Onset, onset
from brickprof.diagnosis.series import Point, median
from brickprof.diagnosis.timeline import Timeline
from brickprof.rules import wording
from brickprof.rules.causality import Anomaly, Stage
from brickprof.rules.layers import shapes

_HANDLED = ("nonfinite", "diverged", "exploding", "not-learning")
_NOWHERE = "loss"
"""What a loss is called that broke where no block was looked at."""
_SMALLER = ((growth.BIG_UPDATE, 3.0), (0.1, 2.0), (0.03, 1.0))
"""Updates as a share of the weights, and how much they speak for the rate where the loss went up."""


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.mechanism or violation.what not in _HANDLED or violation.details.get("logged"):
        return []
    before = last_step(violation)
    began = onset(case, violation.rank)
    rate = _learning_rate(violation, before, began, case.timeline)
    if violation.what == "not-learning":
        return [rate] if rate.support else []
    exploding = _exploding(violation, before, began, case.timeline)
    if exploding.support and violation.brick == _NOWHERE:
        _names_the_steepest(exploding, violation.rank, before, case)
    return [rate, _warmup(violation, before, began, case.timeline), exploding]


def last_step(violation: Violation) -> int:
    """The last step that can have led to it: what stands in the backward of the step came after a forward origin."""
    origin = violation.details.get("origin")
    if isinstance(origin, Anomaly):
        return origin.step if origin.stage >= Stage.BACKWARD else origin.step - 1
    return max(violation.first_step, violation.detected_step)


def _in_the_data(violation: Violation) -> str:
    origin = violation.details.get("origin")
    return origin.evidence if isinstance(origin, Anomaly) and origin.stage is Stage.DATA else ""


# -- the rate


def _learning_rate(violation: Violation, before: int, began: Onset, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("learning-rate-too-high")
    rate = next(reversed(timeline.rates.until(before)), None)
    shown = f" (it is {rate.value:.3g})" if rate else ""
    cause.action = f"Lower the learning rate by a factor of 10{shown}, or warm it up."
    cause.next_experiment = "Run the first steps with a tenth of the learning rate: the loss should now fall."
    _update_sizes(cause, violation, before, timeline)
    _rate_jumped(cause, before, timeline)
    if cause.support and began.large and began.norm is not None:
        cause.contradicts(began.text, 4 if began.huge else 2.5, *began.evidence)
    rise = growth.loss_rise(timeline, before)
    if rise is not None and (cause.support or violation.what == "diverged"):
        low, last = rise
        text = f"the loss rose from {low.value:.4g} (step {low.step:,}) to {last.value:.4g} (step {last.step:,})"
        cause.supports(text, 1, low.evidence, last.evidence)
    if (evidence := _in_the_data(violation)) != "":
        cause.contradicts("it began in the data", 2, evidence)
    return cause


def _update_sizes(cause: Hypothesis, violation: Violation, before: int, timeline: Timeline) -> None:
    updates = growth.updates(timeline, before)
    if updates is None:
        cause.lacks("update sizes before the incident (level standard samples them)")
        return
    points = timeline.moves.until(before)
    went_up = violation.what in ("diverged", "exploding")
    steady = violation.what == "not-learning"
    big = updates.first_big
    size = median(points) if steady else max(points[-8:], key=lambda point: point.value).value
    weight = next((weight for least, weight in _SMALLER if size >= least), 0.0)
    if big is not None and not steady:
        text = f"the update of step {big.step:,} changed the weights by {big.value:.1%} of their size"
        cause.supports(text, 3, big.evidence)
        _gradient_came_first(cause, big, timeline)
    elif (went_up or steady) and weight:
        big = max(points, key=lambda point: point.value)
        every = "every update changes" if steady else "updates change"
        text = f"{every} the weights by {size:.1%} of their size"
        cause.supports(text, weight, big.evidence)
    elif updates.typical < growth.SMALL_UPDATE:
        text = f"update/weight {updates.last.value:.1g} until step {updates.last.step:,}"
        cause.contradicts(text, 2 if updates.last.step >= before - 1 else 1, updates.last.evidence)
        return
    else:
        return
    cause.whys.append(
        Why("Why did it run away?" if not steady else "Why does nothing settle?",
            f"{wording.sentence(text)} 0.1 % is usual.", "", (big.evidence,))
    )  # fmt: skip


def _gradient_came_first(cause: Hypothesis, big: Point, timeline: Timeline) -> None:
    """A large update after small ones at the same rate, of a gradient that was large itself: it is not the rate."""
    norms, rates = timeline.norms.until(big.step), timeline.rates.until(big.step)
    if len(norms) < 4 or norms[-1].step != big.step or not rates:
        return
    usual, ordinary = median(norms[:-1]), _ordinary_before(big, timeline)
    same = rates[-1].value <= 1.5 * median(rates)
    if ordinary and same and usual > 0 and norms[-1].value >= growth.GROWN * usual:
        text = f"earlier updates at this rate were small; the gradient of step {big.step:,} was {norms[-1].value:.3g}"
        cause.contradicts(f"{text}, {norms[-1].value / usual:,.0f} times the usual one", 4, norms[-1].evidence)


def _rate_jumped(cause: Hypothesis, before: int, timeline: Timeline) -> None:
    rates = timeline.rates.until(before)
    usual = median(rates[:-1])
    if len(rates) < 2 or usual <= 0 or rates[-1].value < 10 * usual:
        return
    text = f"the learning rate went from {usual:.3g} to {rates[-1].value:.3g} in step {rates[-1].step:,}"
    cause.supports(text, 3, rates[-1].evidence)
    cause.whys.append(Why("Why did it run away?", wording.sentence(text), "", (rates[-1].evidence,)))


# -- the warm-up


def _warmup(violation: Violation, before: int, began: Onset, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("warmup-missing")
    cause.action = "Let the learning rate rise from near 0 over the first hundreds of steps."
    cause.next_experiment = "Run the first steps with a rate that rises linearly: the early jump should be gone."
    rates = timeline.rates.until(before)
    if not rates:
        cause.lacks("the learning rate of the first steps")
        return cause
    peak = max(rates, key=lambda point: point.value)
    full = rates[0].step <= 1 and rates[0].value >= 0.9 * peak.value
    if not full:
        text = f"the rate rose from {rates[0].value:.3g} to {peak.value:.3g}"
        cause.contradicts(text, 2, rates[0].evidence, peak.evidence)
        return cause
    if began.warmup is not None:
        key, steps, evidence = began.warmup
        text = f"{key}: {steps:g} is declared, and the rate is {rates[0].value:.3g} in step {rates[0].step:,} already"
        if violation.first_step <= max(steps, 10):
            cause.supports(text, 4, evidence, rates[0].evidence)
            cause.whys.append(Why("Was the rate led up to?", wording.sentence(text), "", (evidence, rates[0].evidence)))
    elif violation.first_step > 100:
        cause.contradicts(f"it began in step {violation.first_step:,}, long after a warm-up would have ended", 2)
    return cause


# -- the gradients themselves


def _exploding(violation: Violation, before: int, began: Onset, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("exploding-gradients")
    cause.action = "Clip the gradient norm before each step; scale initialisation or residual branches by depth."
    cause.next_experiment = (
        "Run with clip_grad_norm_(model.parameters(), 1.0): the norm before clipping shows the growth."
    )
    norms = growth.norms(timeline, before)
    if began.large:
        cause.supports(began.text, 3 if began.huge else 1.5, *began.evidence)
        cause.whys.append(Why("How large were gradients at first?", wording.sentence(began.text), "", began.evidence))
    if norms is None:
        cause.lacks("gradient norms before the incident")
    elif norms.grew or norms.peak.value >= growth.HUGE:
        peak = norms.peak
        text = f"the gradient norm went from {norms.typical:.3g} to {peak.value:.3g} by step {peak.step:,}"
        cause.supports(text, 1.5 + 0.5 * min(norms.gradual, 4), norms.first.evidence, norms.peak.evidence)
        cause.whys.append(Why("Why did it overflow?", wording.sentence(text), "", cause.evidence))
        if not began.large:
            updates_came_first(cause, norms, before, timeline)
    elif norms.flat and not began.large:
        text = f"the gradient norm stayed near {norms.typical:.3g} until step {norms.last.step:,}"
        cause.contradicts(text, 2, norms.last.evidence)
    _by_depth(cause, before, timeline)
    if (evidence := _in_the_data(violation)) != "":
        cause.contradicts("it began in the data", 2, evidence)
    return cause


def _by_depth(cause: Hypothesis, before: int, timeline: Timeline) -> None:
    profile = growth.profile(timeline, before)
    if profile is None or profile.per_block < 2 or not cause.support:
        return
    text = (
        f"gradients grow {profile.per_block:.1f}x per block, from {profile.low.value:.2g} ({profile.low.name}) "
        f"to {profile.high.value:.2g} ({profile.high.name})"
    )
    evidence = (profile.low.evidence, profile.high.evidence)
    cause.supports(text, 1.5, *evidence)
    cause.whys.append(Why("Why are they that large?", wording.sentence(text), profile.high.name, evidence))


def _names_the_steepest(cause: Hypothesis, rank: int, before: int, case: Case) -> None:
    """The matrix that the loss hangs on most, in the last look before in which every gradient was finite."""
    grads, weights = case.story.grid("grad", rank), case.story.grid("weight", rank)
    known = shapes(case.story, rank)
    matrices = [place for place, name in enumerate(grads.tensors) if len(known.get(name, ())) >= 2]
    sizes = grads.unscaled_l2[:, matrices]
    looks = np.flatnonzero((grads.steps <= before) & np.isfinite(sizes).all(axis=1))
    if not matrices or not len(looks) or not len(weights):
        return
    look = int(looks[-1])
    at = max(int(np.searchsorted(weights.steps, grads.steps[look], side="right")) - 1, 0)
    owns = [weights.place(grads.tensors[place]) for place in matrices]
    own = np.asarray([np.nan if place is None else weights.l2[at, place] for place in owns])
    reach = sizes[look] * own
    if not np.isfinite(reach).any():
        return
    most = int(np.nanargmax(reach))
    place, of = matrices[most], owns[most]
    text = (
        f"the loss hangs most on {grads.tensors[place]}: its gradient is {sizes[look, most]:.3g} in step "
        f"{int(grads.steps[look]):,}, and if it moved by its own size, the loss would move by {reach[most]:.2g}"
    )
    cause.brick = case.timeline.names.show(grads.bricks[place])
    evidence = (grads.evidence(look, place), *(() if of is None else (weights.evidence(at, of),)))
    cause.whys.append(Why("Which gradients are that large?", wording.sentence(text), cause.brick, evidence))


def updates_came_first(cause: Hypothesis, norms: growth.Norms, before: int, timeline: Timeline) -> None:
    """Speaks against gradients as the origin where large updates came before they grew."""
    updates = growth.updates(timeline, before)
    if updates is None or updates.first_big is None or norms.first.value >= growth.HUGE:
        return
    grown = next(
        (p.step for p in timeline.norms.until(before) if p.value >= growth.GROWN / 10 * norms.first.value),
        None,
    )
    big = updates.first_big
    if grown is None or big.step < grown or (big.step == grown and not _ordinary_before(big, timeline)):
        text = f"updates were {big.value:.2g} of the weights in step {big.step:,}, before gradients grew"
        cause.contradicts(text, 2, big.evidence)


def _ordinary_before(big: Point, timeline: Timeline) -> bool:
    sizes = [point.value for point in timeline.moves.until(big.step) if point.step < big.step]
    return len(sizes) >= 4 and max(sizes) < growth.SMALL_UPDATE
