"""Why a run that only a log tells of went wrong: what its few numbers say, and what they leave open.

Enters: the symptoms nonfinite, diverged, exploding, not-learning and slow-down of a log. Leaves: hypotheses that are
weighed by what the log holds: which number moved first, the precision and the bounds that its settings state, the rate.
What would decide and is not in a log is said, with the command that records it.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.rules import again, wording
from brickprof.rules.log_norms import stated_bound
from brickprof.rules.log_view import View, show, view

_TINY_RATE, _HIGH_RATE = 1e-7, 0.01
_WARM_UPS = ("warmup_steps", "warmup", "warmup_ratio", "num_warmup_steps", "warmup_iters", "lr_warmup_iters",
             "lr_warmup_steps", "warmup_iterations", "warmup_updates")  # fmt: skip

_RIGHT_BEFORE = 2
"""Steps: what was ordinary longer ago says nothing of the batch that broke it."""


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    seen = view(case.story)
    if seen is None or violation.mechanism or not violation.details.get("logged"):
        return []
    if violation.what == "nonfinite":
        alone = violation.details.get("origin_what") == "evaluation" and len(seen.finite)
        return [] if alone else _nonfinite(violation, seen)  # what training did says nothing of it
    if violation.what in ("diverged", "exploding"):
        return _ran_away(violation, seen)
    if violation.what == "not-learning":
        return _not_learning(violation, seen)
    if violation.what == "slow-down":
        return [_slow(violation, seen)]
    return []


# -- not finite


def _nonfinite(violation: Violation, seen: View) -> list[Hypothesis]:
    if violation.details.get("unborn"):
        return [_begun_so(violation, seen), _data(violation, seen), _narrow(violation, seen), _innocent(violation)]
    return [
        _narrow(violation, seen), _grew(violation, seen), _unbounded(violation, seen), _rate(violation, seen),
        _data(violation, seen), _unprepared(violation, seen), _open(violation, seen),
    ]  # fmt: skip


def _begun_so(violation: Violation, seen: View) -> Hypothesis:
    """Nothing was ever finite: the weights it starts from, or the arithmetic."""
    cause = Hypothesis("bad-initialisation")
    cause.action = (
        "Look at the weights before the first step (torch.isfinite of each), then at the output of each block for one "
        "batch: a loaded file, an initialisation or a build of the kernels is at fault, not the training."
    )
    cause.supports("the loss is not finite before any update was made", 0.8, *violation.evidence)
    if violation.details.get("evaluated"):
        cause.supports("two sets of data give the same: it is in the model, not in a batch", 0.6, *violation.evidence)
    cause.lacks(
        f"weights and outputs of the first step ({again.looking_at(seen.story, seen.rank, violation.first_step)})"
    )
    text = "No update had been made, and no loss was finite: what is left is what it started from."
    cause.whys.append(Why("What can it be?", text, "", violation.evidence))
    return cause


def _innocent(violation: Violation) -> Hypothesis:
    cause = Hypothesis("learning-rate-too-high")
    cause.contradicts("no update had been made when the loss was first not finite", 3, *violation.evidence)
    return cause


def _data(violation: Violation, seen: View) -> Hypothesis:
    cause = Hypothesis("data-nonfinite")
    cause.action = "Look at the samples of that step: torch.isfinite of inputs and targets."
    cause.next_experiment = again.looking_at(seen.story, seen.rank, int(violation.details["step"]))
    moved = set(violation.details.get("moved", ()))
    if violation.details.get("unborn"):
        if violation.details.get("evaluated"):
            cause.contradicts("the evaluation, on other data, is not finite either", 2, *violation.evidence)
        else:
            cause.supports("the very first loss is not finite", 0.4, *violation.evidence)
            cause.lacks("the first batch")
        return cause
    if violation.details.get("origin_what") == "norm":
        cause.contradicts("the loss of that step is finite: its batch is too", 2, *violation.evidence)
    elif "norm" in moved or "loss" in moved:
        cause.contradicts("other numbers had moved before it", 1.5, *violation.evidence)
    elif "norm-calm" in moved:
        step, known = int(violation.details["step"]), seen.norms.finite()
        before = known.until(step - 1)
        if len(before) and step - int(before.steps[-1]) <= _RIGHT_BEFORE:
            cause.supports("the gradient norm was ordinary until then", 0.5, *violation.evidence)
        cause.lacks(f"the batch of that step ({cause.next_experiment})")
    return cause


def _narrow(violation: Violation, seen: View) -> Hypothesis:
    cause = Hypothesis("fp16-overflow")
    cause.action = "Use bfloat16, or keep norms, softmax and the loss in float32; clip gradients and warm the rate up."
    cause.next_experiment = "Run the same steps with dtype=torch.bfloat16: an overflow of float16 goes away."
    narrow, said, proof = seen.narrow
    step = int(violation.details["step"])
    first_in_backward = violation.details.get("origin_what") == "norm"
    if narrow is False:
        cause.contradicts(said, 3, *proof)
        return cause
    if narrow:
        cause.supports(said, 1.5, *proof)
        if first_in_backward:
            cause.supports(
                "gradients were the first to break: products of the backward outgrow float16", 1, *violation.evidence
            )
        if "scale" in violation.details.get("moved", ()):
            cause.supports(
                "the loss scale had fallen before: updates overflowed one after another", 1, *violation.evidence
            )
        cause.lacks(f"the first block whose output is not finite ({again.looking_at(seen.story, seen.rank, step)})")
        cause.whys.append(Why("What precision does it compute in?", wording.sentence(said), "", proof))
    elif first_in_backward:
        text = "gradients are not finite while the loss is: products of the backward are the first to overflow"
        cause.supports(text, 0.7, *violation.evidence)
        cause.lacks("the precision it computes in (the log does not say; `brickprof run` records it)")
        cause.whys.append(Why("Where does it begin?", wording.sentence(text), "", violation.evidence))
    else:
        cause.lacks("the precision it computes in")
    return cause


def _grew(violation: Violation, seen: View) -> Hypothesis:
    cause = Hypothesis("exploding-gradients")
    cause.action = "Clip gradients (clip_grad_norm_), lower or warm up the rate, and alarm on the norm."
    step = int(violation.details["step"])
    norms = seen.norms.where(np.isfinite(seen.norms.values) & (seen.norms.steps < step))
    if not len(norms):
        cause.lacks("gradient norms before it (`brickprof run` records them)")
        return cause
    moved = violation.details.get("moved", ())
    last = len(norms) - 1
    if "norm" in moved:
        usual, peak = float(np.median(norms.values)), float(norms.values[-8:].max())
        text = f"the gradient norm had grown to {show(peak)} where {show(usual)} is usual"
        cause.supports(text, 2 if peak < 100 * usual else 3, norms.evidence(last))
        cause.whys.append(Why("What grew?", wording.sentence(text), "", (norms.evidence(last),)))
    else:
        cause.contradicts(
            f"the gradient norm was {show(float(norms.values[last]))} just before, as usual", 2, norms.evidence(last)
        )
    return cause


def _unbounded(violation: Violation, seen: View) -> Hypothesis:
    cause = Hypothesis("grad-clip-not-applied")
    cause.action = "Clip: clip_grad_norm_(model.parameters(), 1.0) after backward and before optimizer.step()."
    bound = stated_bound(seen)
    if bound is None:
        cause.lacks("whether gradients are clipped")
    elif bound[0] > 0:
        cause.contradicts(f"the log states a bound of {bound[0]:g}", 2, bound[1])
    elif "norm" in violation.details.get("moved", ()) or violation.details.get("origin_what") == "norm":
        text = "the log states that nothing clips gradients, and they were the first to leave their size"
        cause.supports(text, 2.5, bound[1], *violation.evidence)
        cause.whys.append(Why("Why did nothing hold them?", wording.sentence(text), "", (bound[1],)))
    return cause


def _rate(violation: Violation, seen: View) -> Hypothesis:
    cause = Hypothesis("learning-rate-too-high")
    step = int(violation.details["step"])
    rates = seen.rates.finite().until(step)
    shown = f" (it is {show(float(rates.values[-1]))})" if len(rates) else ""
    cause.action = f"Lower the learning rate by a factor of 3 to 10{shown}, or warm it up."
    cause.next_experiment = "Run the first steps with a tenth of the learning rate: the loss should now fall."
    losses = seen.finite.until(step)
    if len(losses) < 3:
        cause.lacks("losses before it")
        return cause
    lowest, last = int(np.argmin(losses.values)), len(losses) - 1
    if float(losses.values[last]) > 1.5 * float(losses.values[lowest]) > 0:
        text = (
            f"the loss had risen from {show(float(losses.values[lowest]))} to {show(float(losses.values[last]))} before"
        )
        cause.supports(text, 1.5, losses.evidence(lowest), losses.evidence(last))
        if len(rates) and float(rates.values[-1]) >= 0.95 * float(rates.values.max()):
            cause.supports("the rate was at its highest", 0.5, rates.evidence(len(rates) - 1))
        cause.lacks("how far updates moved the weights (`brickprof run` records it)")
        cause.whys.append(Why("What did the loss do before?", wording.sentence(text), "", cause.evidence))
    elif float(losses.values[last]) < float(losses.values[0]):
        cause.contradicts(f"the loss was falling until {seen.at(int(losses.steps[last]))}", 1.5, losses.evidence(last))
    return cause


def _unprepared(violation: Violation, seen: View) -> Hypothesis:
    """Broken among the first lines, at a rate that begins at its peak."""
    cause = Hypothesis("warmup-missing")
    cause.action = "Let the learning rate rise from near zero over the first few hundred updates."
    stated = next((seen.settings[key] for key in _WARM_UPS if key in seen.settings), None)
    if stated is not None:
        if isinstance(stated[0], int | float) and stated[0] == 0:
            cause.supports("the log states a warm-up of 0", 1.2, stated[1])
            cause.lacks("how far the first updates moved the weights (`brickprof run` records it)")
        else:
            cause.contradicts(f"the log states a warm-up of {stated[0]}", 2, stated[1])
    return cause


def _open(violation: Violation, seen: View) -> Hypothesis:
    """What is left to say where the log shows that it broke, and nothing else."""
    cause = Hypothesis("undetermined")
    command = again.looking_at(seen.story, seen.rank, int(violation.details["step"]))
    cause.action = f"Look closely at the steps before: {command} records the first block, its inputs and its precision."
    cause.next_experiment = command
    cause.supports(violation.symptom, 0.05, *violation.evidence)
    missing = ["the batch", "the outputs of the blocks"]
    missing += ["gradient norms"] if not len(seen.norms) else []
    missing += ["the precision it computes in"] if seen.narrow[0] is None else []
    cause.lacks(f"{', '.join(missing[:-1])} and {missing[-1]} ({command})")
    return cause


# -- ran away, or stood still


def _ran_away(violation: Violation, seen: View) -> list[Hypothesis]:
    if violation.details.get("by_evaluation") and not len(seen.rates):
        return []  # evaluations that rise, and nothing that would say why
    rate, grew = _rate(violation, seen), _grew(violation, seen)
    if violation.what == "diverged":
        rate.supports("the loss rises and stays up", 0.8, *violation.evidence)
        rate.against = [fact for fact in rate.against if "falling" not in fact.text]
    norms = seen.norms.finite()
    if violation.what == "exploding" or (len(norms) >= 8 and _rose(norms.values)):
        grew.against = []
        place = int(np.argmax(norms.values))
        text = f"the gradient norm reached {show(float(norms.values[place]))} at {seen.at(int(norms.steps[place]))}"
        grew.supports(text, 1.5, norms.evidence(place))
        grew.whys.append(Why("What else moved?", wording.sentence(text), "", (norms.evidence(place),)))
    if not rate.missing:
        rate.lacks("how far updates moved the weights (`brickprof run` records it)")
    return [rate, grew, _unbounded(violation, seen)]


def _rose(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    half = len(values) // 2
    return float(np.median(values[half:])) > 10 * float(np.median(values[:half])) > 0


def _not_learning(violation: Violation, seen: View) -> list[Hypothesis]:
    rates, norms = seen.rates.finite(), seen.norms.finite()
    low, high = Hypothesis("learning-rate-too-low"), Hypothesis("learning-rate-too-high")
    path, open_ = Hypothesis("no-gradient-path"), Hypothesis("plateau")
    low.action, high.action = "Raise the learning rate.", "Lower the learning rate by a factor of 10."
    path.action = "Look for a detach, a frozen model or an optimizer that owns other tensors."
    open_.action = (
        "Train on ten samples only: a model that can learn brings that loss to zero. If it does, look at labels and "
        "inputs side by side; if it does not, at the model and the rate."
    )
    open_.supports(violation.symptom, 0.3, *violation.evidence)
    missing = [name for name, found in (("the learning rate", rates), ("gradient norms", norms)) if not len(found)]
    open_.lacks(f"{' and '.join([*missing, 'how far the weights moved'])} (`brickprof run SCRIPT` records them)")
    if len(rates):
        highest = float(rates.values.max())
        place = int(np.argmax(rates.values))
        if highest <= _TINY_RATE:
            text = f"the learning rate is {show(highest)} at most"
            low.supports(text, 2.5, rates.evidence(place))
            low.whys.append(Why("How large is the rate?", wording.sentence(text), "", (rates.evidence(place),)))
        elif highest >= _HIGH_RATE and len(norms):
            high.supports(f"the learning rate is {show(highest)}", 0.4, rates.evidence(place))
            high.lacks("the optimizer, and how far updates moved the weights")
    if len(norms):
        middle = float(np.median(norms.values))
        if middle < 1e-6:
            text = f"the gradient norm is {show(middle)}: next to nothing reaches the parameters"
            path.supports(text, 2.5, norms.evidence(len(norms) // 2))
            path.whys.append(
                Why("Do gradients arrive?", wording.sentence(text), "", (norms.evidence(len(norms) // 2),))
            )
        else:
            path.contradicts(f"gradients flow (norm {show(middle)})", 2, norms.evidence(len(norms) // 2))
    return [low, high, path, open_]


def _slow(violation: Violation, seen: View) -> Hypothesis:
    """A log says that it is slower, not why."""
    cause = Hypothesis("undetermined")
    cause.action = "Compare the nodes, clocks and file systems of both times; then look at one slow step closely."
    cause.next_experiment = again.looking_at(seen.story, seen.rank, int(violation.details["step"]))
    cause.supports(violation.symptom, 0.2, *violation.evidence)
    cause.lacks("whether the loader, the device or another rank is waited for (`brickprof run` records it)")
    return cause
