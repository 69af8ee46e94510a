"""Why values stopped being finite.

Enters: an incident of C-TRAINSTABLE-001 (its origin in causal order) and the timeline before it. Leaves: a
hypothesis for each cause of the family, weighed by what the records say:

    data-nonfinite   fp16-overflow   exploding-gradients   grad-clip-not-applied   learning-rate-too-high
    log-of-zero, division-by-zero, invalid-op   loss-scale-misused
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis import growth
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.diagnosis.series import median
from brickprof.diagnosis.timeline import Timeline
from brickprof.rules import wording
from brickprof.rules.causality import Anomaly, Stage

_FP16_MAX = 65504.0
_COMPUTED = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    timeline = case.timeline
    origin = violation.details.get("origin")
    if violation.what != "nonfinite" or not isinstance(origin, Anomaly):
        return []
    # What stands in the backward of the step came after an origin in its forward.
    before = origin.step if origin.stage >= Stage.BACKWARD else origin.step - 1
    return [
        _data(origin, timeline),
        _fp16(origin, violation, timeline),
        _learning_rate(origin, before, timeline),
        _exploding(origin, before, timeline),
        _not_clipped(origin, before, timeline),
        _invalid_op(origin, violation, before, timeline),
        _loss_scale(violation, timeline),
    ]


def _data(origin: Anomaly, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("data-nonfinite")
    cause.action = "Find the samples of this batch that are not finite; drop them or repair them before training."
    cause.next_experiment = f"Load the batch of step {origin.step} alone and look at torch.isfinite of it."
    if origin.stage is Stage.DATA:
        cause.supports(f"the batch of step {origin.step:,} holds values that are not finite", 4, origin.evidence)
        cause.whys.append(
            Why(
                "Where did they come from?",
                "They were in the batch before the model saw it.",
                "data",
                (origin.evidence,),
            )
        )
        return cause
    if origin.stage is Stage.FORWARD and origin.details.get("inputs_finite") is False:
        cause.supports("the first block that went wrong was given values that are not finite", 2, origin.evidence)
        cause.lacks("what stands between the batch and that block")
        cause.whys.append(Why("Where did they come from?", "The block was handed them.", "", (origin.evidence,)))
        return cause
    seen = next((point for point in timeline.inputs_finite if point.step == origin.step), None)
    if seen is not None:
        cause.contradicts(f"the inputs of step {origin.step:,} are finite", 3, seen.evidence)
    elif origin.stage >= Stage.BACKWARD:
        cause.contradicts("the forward pass and the loss of that step are finite", 2, origin.evidence)
    else:
        cause.lacks(f"the inputs of step {origin.step:,} (level deep looks at them)")
    return cause


def _fp16(origin: Anomaly, violation: Violation, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("fp16-overflow")
    cause.action = "Use bfloat16, or keep this block in float32, or bring its inputs to unit scale."
    cause.next_experiment = "Run the same steps with dtype=torch.bfloat16: an overflow of float16 goes away."
    dtype = str(origin.details.get("dtype") or "")
    if dtype == "float16" and origin.stage in _COMPUTED:
        what = f"{_thing(origin, violation)} is in float16, which ends at 65,504"
        cause.supports(what, 3 if origin.inf else 2, origin.evidence)
        near = timeline.outputs.get(origin.brick) if origin.brick is not None else None
        if near is not None and near.value > _FP16_MAX / 8:
            text = f"its output had reached {near.value:,.0f} in step {near.step:,}"
            cause.supports(text, 1, near.evidence)
        cause.whys.append(Why("Why there?", wording.sentence(what), violation.brick, cause.evidence))
    elif dtype and origin.stage is not Stage.LOSS:
        cause.contradicts(f"{_thing(origin, violation)} is in {dtype}", 3, origin.evidence)
    elif not timeline.scaler_seen and "float16" not in timeline.dtypes | timeline.narrow_outputs:
        cause.contradicts("no tensor in float16 and no loss scaler in this run", 2)
    else:
        cause.lacks("the precision of the block where it began (level standard, sampled steps)")
    return cause


def _learning_rate(origin: Anomaly, before: int, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("learning-rate-too-high")
    rate = next(reversed(timeline.rates.until(before)), None)
    shown = f" (it is {rate.value:.3g})" if rate else ""
    cause.action = f"Lower the learning rate by a factor of 10{shown}, or warm it up."
    cause.next_experiment = "Run the first steps with a tenth of the learning rate: the loss should now fall."
    updates, norms = growth.updates(timeline, before), growth.norms(timeline, before)
    if updates is None:
        cause.lacks("update sizes before the incident (level standard samples them)")
    elif updates.first_big is not None:
        big = updates.first_big
        text = f"the update of step {big.step:,} changed the weights by {big.value:.1%} of their size"
        cause.supports(text, 3, big.evidence)
        cause.whys.append(Why("Why did it run away?", f"{wording.sentence(text)} 0.1 % is usual.", "", (big.evidence,)))
        if norms is not None and norms.first.value >= growth.HUGE:
            text = f"gradients were already {norms.first.value:.2g} in step {norms.first.step:,}"
            cause.contradicts(text, 2, norms.first.evidence)
    elif updates.typical < growth.SMALL_UPDATE:
        text = f"update/weight {updates.last.value:.1g} until step {updates.last.step:,}"
        cause.contradicts(text, 2 if updates.last.step >= before - 1 else 1, updates.last.evidence)
    _rate_jumped(cause, before, timeline)
    rise = growth.loss_rise(timeline, before)
    if rise is not None and cause.support:
        low, last = rise
        text = f"the loss rose from {low.value:.4g} (step {low.step:,}) to {last.value:.4g} (step {last.step:,})"
        cause.supports(text, 1, low.evidence, last.evidence)
    if origin.stage is Stage.DATA:
        cause.contradicts("it began in the data", 2, origin.evidence)
    return cause


def _rate_jumped(cause: Hypothesis, before: int, timeline: Timeline) -> None:
    rates = timeline.rates.until(before)
    usual = median(rates[:-1])
    if len(rates) < 2 or usual <= 0 or rates[-1].value < 10 * usual:
        return
    text = f"the learning rate went from {usual:.3g} to {rates[-1].value:.3g} in step {rates[-1].step:,}"
    cause.supports(text, 3, rates[-1].evidence)
    cause.whys.append(Why("Why did it run away?", wording.sentence(text), "", (rates[-1].evidence,)))


def _exploding(origin: Anomaly, before: int, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("exploding-gradients")
    cause.action = "Clip the gradient norm before each step; scale initialisation or residual branches by depth."
    cause.next_experiment = (
        "Run with clip_grad_norm_(model.parameters(), 1.0): the norm before clipping shows the growth."
    )
    norms, profile = growth.norms(timeline, before), growth.profile(timeline, before)
    if norms is None:
        cause.lacks("gradient norms before the incident")
    elif norms.grew or norms.peak.value >= growth.HUGE:
        peak = norms.peak
        text = f"the gradient norm went from {norms.typical:.3g} to {peak.value:.3g} by step {peak.step:,}"
        cause.supports(text, 1.5 + 0.5 * min(norms.gradual, 4), norms.first.evidence, norms.peak.evidence)
        cause.whys.append(Why("Why did it overflow?", wording.sentence(text), "", cause.evidence))
        _updates_came_first(cause, norms, before, timeline)
    elif norms.flat:
        text = f"the gradient norm stayed near {norms.typical:.3g} until step {norms.last.step:,}"
        cause.contradicts(text, 2, norms.last.evidence)
    if profile is not None and profile.per_block >= 2 and cause.support:
        text = (
            f"gradients grow {profile.per_block:.1f}x per block, "
            f"from {profile.low.value:.2g} ({profile.low.name}) "
            f"to {profile.high.value:.2g} ({profile.high.name})"
        )
        cause.supports(text, 1.5, profile.low.evidence, profile.high.evidence)
        evidence = (profile.low.evidence, profile.high.evidence)
        cause.whys.append(Why("Why are they that large?", wording.sentence(text), profile.high.name, evidence))
    if origin.stage is Stage.DATA:
        cause.contradicts("it began in the data", 2, origin.evidence)
    return cause


def _updates_came_first(cause: Hypothesis, norms: growth.Norms, before: int, timeline: Timeline) -> None:
    updates = growth.updates(timeline, before)
    if updates is None or updates.first_big is None or norms.first.value >= growth.HUGE:
        return
    grown = next(
        (p.step for p in timeline.norms.until(before) if p.value >= growth.GROWN / 10 * norms.first.value),
        None,
    )
    big = updates.first_big
    if grown is None or big.step <= grown:
        text = f"updates were {big.value:.2g} of the weights in step {big.step:,}, before gradients grew"
        cause.contradicts(text, 2, big.evidence)


def _not_clipped(origin: Anomaly, before: int, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("grad-clip-not-applied")
    cause.action = "Call clip_grad_norm_(model.parameters(), 1.0) after backward and before optimizer.step()."
    cause.next_experiment = "Run again with that one line; the spike should pass without damage."
    if timeline.clips.count:
        last = list(timeline.clips)[-1]
        cause.contradicts(f"clipping ran {timeline.clips.count:,} times", 3, last.evidence)
        return cause
    norms = growth.norms(timeline, before)
    if norms is None:
        cause.lacks("gradient norms before the incident")
    elif norms.grew and norms.gradual <= 2:
        text = f"the norm jumped from {norms.typical:.3g} to {norms.peak.value:.3g} in step {norms.peak.step:,}"
        cause.supports(text, 2, norms.peak.evidence)
        cause.whys.append(Why("Why did they break?", wording.sentence(text), "", (norms.peak.evidence,)))
        text = f"in {norms.peak.step + 1:,} steps nothing clipped between backward and step"
        cause.supports(text, 1, norms.peak.evidence)
        cause.whys.append(Why("Why was it not clipped?", wording.sentence(text), "", (norms.peak.evidence,)))
        _updates_came_first(cause, norms, before, timeline)
    elif not norms.grew:
        text = f"there was nothing to clip: the norm was {norms.last.value:.3g} in step {norms.last.step:,}"
        cause.contradicts(text, 2, norms.last.evidence)
    return cause


def _invalid_op(origin: Anomaly, violation: Violation, before: int, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis(_operation(origin))
    cause.action = "Keep the argument of log, sqrt and division away from 0 (clamp it, or use the fused, stable loss)."
    cause.next_experiment = f"Run step {origin.step} under torch.autograd.detect_anomaly(): it names the operation."
    if origin.stage is Stage.LOSS:
        _loss_is_first(cause, origin, timeline)
    elif origin.stage in _COMPUTED and origin.details.get("dtype") != "float16":
        where = "output" if origin.stage is Stage.FORWARD else "gradient"
        cause.supports(f"the {where} of {violation.brick} is the first thing that is not finite", 1.5, origin.evidence)
        if origin.details.get("inputs_finite") is True:
            cause.supports("what went into it was finite", 1, origin.evidence)
        elif origin.details.get("inputs_finite") is False:
            cause.contradicts("what went into it was not finite already", 2, origin.evidence)
    elif origin.stage is Stage.WEIGHTS:
        cause.supports("the weights are the first thing that was seen to be not finite", 0.5, origin.evidence)
        cause.lacks(f"the gradients of step {origin.step:,} (--level deep looks in every step)")
    if cause.support:
        evidence = cause.evidence
        finding = " and ".join(fact.text for fact in cause.support)
        cause.whys.append(Why("Why there?", wording.sentence(finding), violation.brick, evidence))
    norms, updates = growth.norms(timeline, before), growth.updates(timeline, before)
    if norms is not None and (norms.grew or norms.peak.value >= growth.HUGE):
        cause.contradicts(f"the gradient norm had reached {norms.peak.value:.3g} before", 2, norms.peak.evidence)
    if updates is not None and updates.first_big is not None:
        big = updates.first_big
        cause.contradicts(f"updates had reached {big.value:.2g} of the weights before", 2, big.evidence)
    return cause


def _loss_is_first(cause: Hypothesis, origin: Anomaly, timeline: Timeline) -> None:
    looked = timeline.looked_at_outputs(origin.step)
    seen = "the loss is the first thing that was seen to be not finite"
    cause.supports(seen, 1.5 if looked is not None else 0.5, origin.evidence)
    if looked is not None and looked.value < 1e15:
        cause.supports("every block's output is finite in that step", 1.5, looked.evidence)
    elif looked is not None:
        cause.contradicts(f"a block's output had reached {looked.value:.2g}", 2, looked.evidence)
    else:
        cause.lacks(f"the inputs and block outputs of step {origin.step:,} (--level deep looks in every step)")


def _operation(origin: Anomaly) -> str:
    made_by = str(origin.details.get("grad_fn") or "")
    if "Div" in made_by:
        return "division-by-zero"
    if origin.stage is Stage.LOSS and (origin.inf or "Log" in made_by):
        return "log-of-zero"
    return "invalid-op"


def _loss_scale(violation: Violation, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("loss-scale-misused")
    cause.action = "In this order: scale(loss).backward(), unscale_(optimizer), clip, scaler.step(optimizer), update()."
    cause.next_experiment = "Run without the scaler in bfloat16 or float32: the incident should be gone."
    scaled = next(iter(timeline.scaled_losses), None)
    if violation.details.get("skipped_in_a_row"):
        cause.supports(violation.symptom, 3, *violation.evidence)
        scales = list(timeline.scales)
        if scales:
            text = f"the scale fell from {scales[0].value:.3g} to {scales[-1].value:.3g}"
            cause.supports(text, 1, scales[0].evidence, scales[-1].evidence)
        cause.action = "Gradients overflow at every scale: look for the block named above, not at the scale."
    elif scaled is not None and not timeline.scaler_steps and timeline.updates:
        text = f"the loss is scaled (first in step {scaled.step:,}) and no update went through the scaler"
        cause.supports(text, 3, scaled.evidence)
    elif scaled is None and not timeline.scaler_seen:
        cause.contradicts("no loss scaler in this run", 3)
    else:
        early = next((key for key, what in timeline.order.items() if what[:2] == ["clip", "unscale"]), None)
        if early is not None:
            cause.supports(f"in step {early[1]:,} clipping ran before unscaling", 2)
        else:
            cause.contradicts("updates went through the scaler", 2, timeline.scaler_seen)
    if cause.support:
        finding = " and ".join(fact.text for fact in cause.support)
        cause.whys.append(Why("Why did they overflow?", wording.sentence(finding), "", cause.evidence))
    return cause


def _thing(origin: Anomaly, violation: Violation) -> str:
    what = {Stage.FORWARD: "output", Stage.WEIGHTS: "weight"}.get(origin.stage, "gradient")
    return f"the {what} of {violation.brick}"
