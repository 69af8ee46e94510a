"""Why values stopped being finite.

Enters: an incident of C-TRAINSTABLE-001 (its origin in causal order) and the timeline before it. Leaves: a
hypothesis for each cause of the family, weighed by what the records say:

    data-nonfinite   fp16-overflow   grad-clip-not-applied   log-of-zero, division-by-zero, invalid-op
    loss-scale-misused   (learning-rate-too-high, exploding-gradients: see ``runaway``)
"""

from __future__ import annotations

from typing import Any

from brickprof.bricks import Brick
from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis import growth
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.diagnosis.timeline import Timeline
from brickprof.records import Event
from brickprof.rules import wording
from brickprof.rules.causality import Anomaly, Stage
from brickprof.rules.handling import declared_bound
from brickprof.rules.names import Tensor, number, whole

_SOON = 16
"""Steps until deep capture has begun, also where losses come late from a device."""
_FP16_MAX = 65504.0
_LARGE = 1e12
"""Norms are smaller in a step whose gradients are of an ordinary size."""
_OPERATIONS = {
    "log-of-zero": ("log-of-zero", "a logarithm of zero"),
    "log-of-negative": ("invalid-op", "a logarithm of a negative number"),
    "division-by-zero": ("division-by-zero", "a division by zero"),
    "empty-mean": ("division-by-zero", "a mean over no targets (none came, or all are ignored or weigh nothing)"),
    "root-of-negative": ("invalid-op", "a root of a negative number"),
    "sqrt": ("invalid-op", "a root of a negative number"),
    "empty-softmax": ("invalid-op", "a softmax over nothing but minus infinity"),
    "overflow": ("invalid-op", "too large a result"),
}
_DIVISIONS, _LOGARITHMS = {"div", "nll_loss", "reciprocal"}, {"log", "log2", "log10", "log1p"}
_COMPUTED = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    timeline = case.timeline
    origin = violation.details.get("origin")
    if violation.what != "nonfinite" or not isinstance(origin, Anomaly):
        return []
    # What stands in the backward of the step came after an origin in its forward.
    before = origin.step if origin.stage >= Stage.BACKWARD else origin.step - 1
    return [
        _data(origin, case),
        _fp16(origin, violation, timeline, case),
        _not_clipped(before, case),
        _invalid_op(origin, violation, before, case),
        _loss_scale(violation, timeline),
    ]


def _data(origin: Anomaly, case: Case) -> Hypothesis:
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
    counted = next((event for event in case.story.events("batch", origin.rank) if _spoilt(event, origin)), None)
    if counted is not None:
        text = f"the batch of step {counted.step:,} holds {_counts(counted)}"
        cause.supports(text, 4, counted.id)
        cause.whys.append(Why("Where did they come from?", wording.sentence(text), "data", (counted.id,)))
        return cause
    given = _told(origin, case)
    if given is not None and given.fields.get("kind") == "input":
        text = "the first thing in the graph that is not finite was handed to the model"
        # What needs no gradient leaves no node in the graph: a block without weights may have made it of good data.
        maker = _maker(origin, case)
        if maker is not None:
            cause.contradicts("a block was given finite values and gave others", 4, maker.id)
            return cause
        if given.fields.get("given_finite") is True:
            cause.contradicts("what the model was given is finite", 4, given.id)
            return cause
        unseen = given.fields.get("given_finite") is None
        if unseen:
            text += ", or made of that by something that needs no gradient"
            cause.lacks("whether what the model was given is finite")
        cause.supports(text, 2 if unseen else 3, given.id)
        cause.whys.append(Why("Where did they come from?", wording.sentence(text), "data", (given.id,)))
        return cause
    if origin.stage is Stage.FORWARD and origin.details.get("inputs_finite") is False:
        cause.supports("the first block that went wrong was given values that are not finite", 2, origin.evidence)
        cause.lacks("what stands between the batch and that block")
        cause.whys.append(Why("Where did they come from?", "The block was handed them.", "", (origin.evidence,)))
        return cause
    seen = next((point for point in case.timeline.inputs_finite if point.step == origin.step), None)
    if seen is not None:
        cause.contradicts(f"the inputs of step {origin.step:,} are finite", 3, seen.evidence)
    elif origin.stage >= Stage.BACKWARD:
        cause.contradicts("the forward pass and the loss of that step are finite", 2, origin.evidence)
    else:
        cause.lacks(f"the inputs of step {origin.step:,} (--deep-at looks at them)")
    return cause


def _maker(origin: Anomaly, case: Case) -> Event | None:
    """A block without weights that was seen, soon after at the latest, to make non-finite values of finite ones.

    One with weights proves nothing: they may have broken in the update of that very step.
    """
    for event in case.story.events("activation", origin.rank):
        if origin.step <= event.step <= origin.step + _SOON and event.fields.get("inputs_finite") is True:
            brick = case.story.names.brick(origin.rank, event.fields.get("brick"))
            if brick is not None and brick.path and not _weighs(brick, origin.rank, case):
                return event
    return None


def _weighs(brick: Brick, rank: int, case: Case) -> bool:
    inside = (f"{tensor.brick.path}." for tensor in case.story.names.tensors(rank) if tensor.model == brick.model)
    return any(path.startswith(_within(brick)) for path in inside)


def _spoilt(batch: Event, origin: Anomaly) -> bool:
    return batch.step == origin.step and bool(whole(batch.fields.get("nan")) or whole(batch.fields.get("inf")))


def _counts(batch: Event) -> str:
    counts = {name: whole(batch.fields.get(name)) for name in ("nan", "inf")}
    return " and ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _told(origin: Anomaly, case: Case) -> Event | None:
    """What was found out about the loss of that step."""
    return next((event for event in case.story.events("origin", origin.rank) if event.step == origin.step), None)


def _module(told: Event | None, case: Case) -> str:
    """The module that the operation stands in; of one in a model's own code the part that it worked on, if known.

    Where nobody knew yet, the same operation may have broken once more later.
    """
    if told is None:
        return ""
    names, rank = case.story.names, told.rank
    alike = [event for event in case.story.events("origin", rank) if _same_operation(event, told)]
    known = next((event for event in (told, *alike) if whole(event.fields.get("brick"))), None)
    brick = None if known is None else names.brick(rank, known.fields["brick"])
    part = None if known is None else names.brick(rank, known.fields.get("given_by"))
    return names.show(part if brick is not None and not brick.path and part is not None else brick)


def _came_out_of(cause: Hypothesis, origin: Anomaly, case: Case) -> None:
    """The operation in the block that broke first, and its module, where it is known and nobody knows what it did."""
    told = _told(origin, case) if origin.stage is Stage.FORWARD else None
    if told is None or told.fields.get("kind") != "unknown" or origin.brick is None:
        return
    brick = case.story.names.brick(told.rank, told.fields.get("brick"))
    if brick is None or brick.model != origin.brick.model or not f"{brick.path}.".startswith(_within(origin.brick)):
        return
    cause.brick = _module(told, case)
    cause.supports(f"it came out of {_bare(told.fields.get('op'))} in {cause.brick}", 0.5, told.id)


def _may_have(cause: Hypothesis, origin: Anomaly) -> None:
    """The operations of compiled code that may have done it by themselves."""
    asked = _asked(origin)
    if len(asked) == 1:
        cause.supports(
            f"{asked[0]} is the one operation in it that has no finite result of some values", 1, origin.evidence
        )
        cause.action = f"Look at what {asked[0]} is given: keep it away from where there is no finite result."
    elif asked:
        cause.supports(f"some values have no finite result in {', '.join(asked)}", 0.5, origin.evidence)


def _asked(origin: Anomaly) -> list[str]:
    told = origin.details.get("operations")
    return [str(each) for each in told] if isinstance(told, list) else []


def _bare(op: Any) -> str:
    """``LogBackward0`` is ``Log``."""
    return str(op or "an operation").partition("Backward")[0] or "an operation"


def _within(brick: Brick) -> str:
    return f"{brick.path}." if brick.path else ""


def _same_operation(event: Event, told: Event) -> bool:
    return all(event.fields.get(name) == told.fields.get(name) for name in ("op", "kind", "depth", "nodes"))


def _narrow_overflow(origin: Anomaly, cause: Hypothesis, violation: Violation, timeline: Timeline, case: Case) -> bool:
    """An operation whose finite arguments were near the end of float16, in a run that computes in float16."""
    told = _told(origin, case)
    if told is None or told.fields.get("kind") != "overflow":
        return False
    made_in = told.fields.get("made_in")  # of a product, whose result nobody saved
    if made_in != "float16" and (made_in or "float16" not in timeline.narrow_outputs):
        return False
    looks = [look for look in told.fields.get("inputs") or () if isinstance(look, dict)]
    largest = max((abs(found) for look in looks if (found := number(look.get("max"))) is not None), default=0.0)
    beyond = made_in == "float16" or any(look.get("dtype") == "float16" and whole(look.get("inf")) for look in looks)
    if not (beyond or _FP16_MAX / 64 <= largest <= _FP16_MAX):
        return False
    operation = _bare(told.fields.get("op"))
    values = f"values up to {largest:,.0f}" if largest else "finite values"
    what = f"{operation} overflowed on {values}, and the run computes in float16, which ends at 65,504"
    cause.supports(what, 4, told.id)
    cause.brick = _module(told, case)
    cause.whys.append(Why("Why there?", wording.sentence(what), cause.brick or violation.brick, cause.evidence))
    return True


def _narrow_products(origin: Anomaly, cause: Hypothesis, violation: Violation, case: Case) -> bool:
    """Gradients of several weights end in infinity and none in nan, and what lies behind them is finite.

    So what flowed back through those layers was finite, and only products inside them were not. Products of such
    numbers do not reach the end of float32: they were made in something narrower.
    """
    if origin.stage < Stage.BACKWARD or origin.details.get("dtype") != "float32":
        return False
    looks = [event for event in case.story.events("grad", origin.rank) if event.step == origin.step]
    told = next((event for event in looks if event.fields.get("nonfinite")), None)
    if told is None:
        return False
    spoilt = [item for item in told.fields.get("nonfinite") or () if isinstance(item, dict)]
    trained = [tensor for tensor in case.story.names.tensors(origin.rank) if tensor.trainable]
    fed = _finitely_fed(told, spoilt, trained)
    partly = [item for item in spoilt if _infinite(item, fed)]
    places = {whole(item.get("tensor")) for item in partly}
    first = min((tensor.number for tensor in trained), default=0)
    whole_behind = len(partly) >= 2 and min(places) > first and whole(told.fields.get("tensors")) > len(partly)
    if len(partly) != len(spoilt) or not whole_behind:
        return False
    counted = all(item.get("inf") is not None for item in partly)
    found = (
        "are infinite in part and nowhere nan" if counted else "have an infinite norm and no nan beside finite biases"
    )
    what = (
        f"the gradients of {wording.count(len(partly), 'weight')} {found}, those of "
        "layers further back are finite: products that float32 holds were made in float16, which ends at 65,504"
    )
    cause.supports(what, 3, told.id)
    cause.action = "Make the products of the backward in bfloat16 or float32, or scale the loss so that they fit."
    cause.whys.append(Why("Why there?", wording.sentence(what), violation.brick, (told.id,)))
    return True


def _finitely_fed(told: Event, spoilt: list[dict[str, Any]], trained: list[Tensor]) -> set[int]:
    """Weights of blocks whose bias has a finite gradient, in a step whose norms alone are known: what came back to
    them was finite, and of an ordinary size. The gradient of a bias is the sum of that."""
    largest = number(told.fields.get("largest"))
    if largest is None or not 0 < largest < _LARGE or whole(told.fields.get("broken")) > len(spoilt):
        return set()
    wrong = {whole(item.get("tensor")) for item in spoilt}
    fine = {tensor.brick for tensor in trained if tensor.name.endswith("bias") and tensor.number not in wrong}
    return {tensor.number for tensor in trained if tensor.brick in fine}


def _infinite(gradient: dict[str, Any], fed: set[int]) -> bool:
    """Whether it holds infinities and no nan: by a count of them, or, of a weight that was ``fed`` finite values, by
    its norm. That alone would be infinite too where squares are beyond float32."""
    if gradient.get("inf") is None:
        return gradient.get("nan") == 0 and whole(gradient.get("tensor")) in fed
    return not gradient.get("nan") and 0 < whole(gradient.get("inf")) < whole(gradient.get("numel"))


def _fp16(origin: Anomaly, violation: Violation, timeline: Timeline, case: Case) -> Hypothesis:
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
        made = _made(origin, case)
        cause.brick = _module(made, case) if made is not None and made.fields.get("kind") == "overflow" else ""
        cause.whys.append(Why("Why there?", wording.sentence(what), violation.brick, cause.evidence))
    elif dtype == "float16" and origin.stage is Stage.WEIGHTS:
        what = f"{_thing(origin, violation)} is kept in float16, where an optimizer's eps of 1e-8 is zero"
        cause.supports(what, 2, origin.evidence)
        cause.whys.append(Why("Why there?", wording.sentence(what), violation.brick, cause.evidence))
    elif _narrow_overflow(origin, cause, violation, timeline, case) or _narrow_products(origin, cause, violation, case):
        pass
    elif dtype and origin.stage is not Stage.LOSS:
        cause.contradicts(f"{_thing(origin, violation)} is in {dtype}", 3, origin.evidence)
    elif not timeline.scaler_seen and "float16" not in timeline.dtypes | timeline.narrow_outputs:
        cause.contradicts("no tensor in float16 and no loss scaler in this run", 2)
    else:
        cause.lacks("the precision of the block where it began (level standard, sampled steps)")
    return cause


def _not_clipped(before: int, case: Case) -> Hypothesis:
    """Only where a bound was wanted: a run that never clips is not at fault for it."""
    timeline, declared = case.timeline, declared_bound(case.story)
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
    elif declared is not None and norms.peak.value > 1.5 * declared.value:
        text = f"{declared.key}: {declared.value:g} is declared, and nothing clipped a norm of {norms.peak.value:.3g}"
        cause.supports(text, 4, declared.evidence, norms.peak.evidence)
        cause.whys.append(Why("Why was it not clipped?", wording.sentence(text), "", cause.evidence))
    elif declared is None:
        cause.contradicts("no bound is declared, and nothing in the run clips", 2)
    elif not norms.grew:
        text = f"there was nothing to clip: the norm was {norms.last.value:.3g} in step {norms.last.step:,}"
        cause.contradicts(text, 2, norms.last.evidence)
    return cause


def _invalid_op(origin: Anomaly, violation: Violation, before: int, case: Case) -> Hypothesis:
    timeline = case.timeline
    made = _made(origin, case)
    cause = Hypothesis(_operation(origin, made, _told(origin, case)))
    cause.action = "Keep the argument of log, sqrt and division away from 0 (clamp it, or use the fused, stable loss)."
    cause.next_experiment = f"Run step {origin.step} under torch.autograd.detect_anomaly(): it names the operation."
    maker = _maker(origin, case)
    if made is not None:
        cause.brick = _module(made, case)
        _names_it(cause, made)
        if made.fields.get("kind") == "empty-mean":
            cause.action = "Leave out what has no targets, or divide the sum of the losses by at least 1."
            cause.next_experiment = (
                f"Count the targets of step {origin.step:,} that are not ignored and weigh something."
            )
    elif maker is not None and origin.stage is Stage.LOSS:
        where = timeline.names.show(timeline.names.brick(origin.rank, maker.fields.get("brick")))
        cause.supports(f"{where} was given finite values and gave others in step {maker.step:,}", 3, maker.id)
        cause.brick = where
    elif origin.stage is Stage.LOSS:
        told = _told(origin, case)
        if told is not None and told.fields.get("kind") == "input" and told.fields.get("given_finite") is True:
            cause.supports(_made_outside(told), 3, told.id)
            if _factor(told) is not None:
                cause.action = (
                    "Add a small number to what these values are divided by, or leave out what has no spread."
                )
                cause.next_experiment = f"Print the factors of the loss in step {origin.step:,}, and what divides them."
        else:
            _loss_is_first(cause, origin, timeline)
        cause.brick = _module(told, case) if told is not None and told.fields.get("kind") == "unknown" else ""
    elif origin.stage in _COMPUTED and origin.details.get("dtype") != "float16":
        where = "output" if origin.stage is Stage.FORWARD else "gradient"
        cause.supports(f"the {where} of {violation.brick} is the first thing that is not finite", 1.5, origin.evidence)
        if origin.details.get("inputs_finite") is True:
            cause.supports("what went into it was finite", 1, origin.evidence)
        elif origin.details.get("inputs_finite") is False:
            cause.contradicts("what went into it was not finite already", 2, origin.evidence)
        _came_out_of(cause, origin, case)
        _may_have(cause, origin)
    elif origin.stage is Stage.WEIGHTS:
        cause.supports("the weights are the first thing that was seen to be not finite", 0.5, origin.evidence)
        cause.lacks(f"the gradients of step {origin.step:,} (--deep-at looks at them)")
    if cause.support:
        evidence = cause.evidence
        *others, last = (fact.text for fact in cause.support)
        finding = f"{', '.join(others)} and {last}" if others else last
        cause.whys.append(Why("Why there?", wording.sentence(finding), cause.brick or violation.brick, evidence))
    _was_running_away(cause, before, timeline, 1 if made is not None else 2)
    return cause


def _was_running_away(cause: Hypothesis, before: int, timeline: Timeline, weight: float) -> None:
    norms, updates = growth.norms(timeline, before), growth.updates(timeline, before)
    if norms is not None and (norms.grew or norms.peak.value >= growth.HUGE):
        cause.contradicts(f"the gradient norm had reached {norms.peak.value:.3g} before", weight, norms.peak.evidence)
    if updates is not None and updates.first_big is not None:
        big = updates.first_big
        cause.contradicts(f"updates had reached {big.value:.2g} of the weights before", weight, big.evidence)


def _made(origin: Anomaly, case: Case) -> Event | None:
    """The record that names the operation in which the loss of that step broke, where there is one."""
    if origin.stage not in (Stage.FORWARD, Stage.LOSS):
        return None
    told = [event for event in case.story.events("origin", origin.rank) if event.step == origin.step]
    return next((event for event in told if event.fields.get("kind") in _OPERATIONS), None)


def _names_it(cause: Hypothesis, made: Event) -> None:
    operation = _bare(made.fields.get("op"))
    kind = str(made.fields.get("kind"))
    near = "on what came out of" if made.fields.get("given_by") else "in"
    where = f" {near} {cause.brick}" if cause.brick else ""
    text = f"{operation}{where} was the first operation to break, {_OPERATIONS[kind][1]}"
    inputs = made.fields.get("inputs")
    looks = [look for look in inputs if isinstance(look, dict)] if isinstance(inputs, list) else []
    low = next((found for look in looks if (found := number(look.get("min"))) is not None), None)
    high = next((found for look in looks if (found := number(look.get("max"))) is not None), None)
    if low is not None and high is not None:
        text += f": what it was given is finite, from {low:.3g} to {high:.3g}"
    cause.supports(text, 2 if kind == "overflow" else 5, made.id)


def _factor(told: Event | None) -> dict[str, Any] | None:
    """The values outside the graph that a product of the loss took, where some of them are nan and none infinite."""
    if told is None or told.fields.get("kind") != "input" or told.fields.get("given_finite") is not True:
        return None
    look = next((each for each in told.fields.get("inputs") or () if isinstance(each, dict)), {})
    some = 0 < whole(look.get("nan")) < whole(look.get("numel")) and not look.get("inf")
    return look if some and str(told.fields.get("op") or "").startswith("Mul") else None


def _made_outside(told: Event) -> str:
    look = _factor(told)
    if look is None:
        return "the model was given finite values, and what it made of them before its first weights is not finite"
    counts = f"{whole(look.get('nan')):,} of {whole(look.get('numel')):,} are nan and none is infinite"
    return (
        f"a product of the loss took values that need no gradient and that the model was not given; {counts}: of "
        "finite numbers that is 0/0, a mean over nothing or a division by a deviation of zero"
    )


def _loss_is_first(cause: Hypothesis, origin: Anomaly, timeline: Timeline) -> None:
    looked = timeline.looked_at_outputs(origin.step)
    seen = "the loss is the first thing that was seen to be not finite"
    cause.supports(seen, 1.5 if looked is not None else 0.5, origin.evidence)
    if looked is not None and looked.value < 1e15:
        cause.supports("every block's output is finite in that step", 1.5, looked.evidence)
    elif looked is not None:
        cause.contradicts(f"a block's output had reached {looked.value:.2g}", 2, looked.evidence)
    else:
        cause.lacks(f"the inputs and block outputs of step {origin.step:,} (--deep-at looks at them)")


def _operation(origin: Anomaly, made: Event | None, told: Event | None) -> str:
    if made is not None:
        return _OPERATIONS[str(made.fields.get("kind"))][0]
    asked = {each.partition(" ")[0] for each in _asked(origin)}
    if asked and asked <= _DIVISIONS:
        return "division-by-zero"
    if asked and asked <= _LOGARITHMS and origin.inf and not origin.nan:
        return "log-of-zero"
    if origin.stage is Stage.LOSS and _factor(told) is not None:
        return "division-by-zero"
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
