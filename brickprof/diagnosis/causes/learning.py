"""Why a loss stays where guessing is, or stops falling.

Enters: the symptoms ``not-learning`` and ``plateau``. Leaves: labels that do not belong to their inputs, where
gradients flow, weights move, and still nothing is learnt; or the plateau itself, which is then all that is known.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.rules import curves, foresight, wording

_EVERY_STEP = 0.1
"""Updates of this share of the weights, step after step, are too large for any labels to be learnt."""

_DEEP = 6
"""Layers of attention from which on a start without warm-up is known to fail."""

_ROOM = 12
"""Parameters a class, below which a model is a toy."""


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.mechanism or violation.details.get("logged"):
        return []
    if violation.what == "plateau":
        return [_plateau(violation)]
    if violation.what == "not-learning" and violation.details.get("at_chance"):
        labels = [_labels(violation, case, cause) for cause in ("labels-misaligned", "labels-random")]
        return [*labels, _too_small(violation, case), _unprepared(violation, case)]
    return []


def _plateau(violation: Violation) -> Hypothesis:
    cause = Hypothesis("plateau")
    cause.supports(violation.symptom, 0.5, *violation.evidence)
    cause.lacks("an evaluation loss, which would tell a floor of noise from a model that is too small")
    cause.action = "Lower the learning rate once; if nothing moves, the model or the data sets this level."
    cause.next_experiment = "Train on ten samples only: a model that can learn them brings the loss to zero."
    return cause


def _labels(violation: Violation, case: Case, name: str) -> Hypothesis:
    cause = Hypothesis(name)
    cause.action = (
        "Print a few inputs beside their labels as the model gets them; look for a shuffle, sort or shift of only one."
    )
    cause.next_experiment = (
        "Train on ten samples only: if the loss falls to zero, the model can learn, and labels are at fault."
    )
    rank, details = violation.rank, violation.details
    cause.supports(violation.symptom, 1, *violation.evidence)
    cause.lacks("inputs beside their labels")
    _flow(cause, case, rank)
    _movement(cause, case, violation)
    _answers(cause, case, rank)
    if _tiny(violation, case):
        cause.contradicts("the model has hardly any parameters", 2)
    aligned = foresight.next_token(case.story, rank)
    if aligned:
        cause.contradicts("the target at every place is the next token of the input", 5, *aligned[:2])
    if name == "labels-random":
        cause.lacks("whether the same input ever had two labels")
    told = " and ".join(fact.text for fact in cause.support[1:])
    finding = f"{told}: what is learnt from one batch does not hold for the next" if told else violation.symptom
    cause.whys.append(Why("Does the model try to learn?", wording.sentence(finding), "", cause.evidence))
    said = f"nothing but the labels of {details.get('classes', 0):,} classes is left: they say nothing about the inputs"
    cause.whys.append(Why("Why does that not help?", wording.sentence(said), "data", violation.evidence))
    return cause


def _unprepared(violation: Violation, case: Case) -> Hypothesis:
    """A deep stack of attention that was started at the full rate of an adaptive optimizer, and never got going."""
    cause = Hypothesis("warmup-missing")
    cause.action = "Let the learning rate rise from near zero over the first few hundred updates (LinearLR)."
    rank, story = violation.rank, case.story
    cause.next_experiment = "Run the first steps with a rate that rises linearly: the loss should now leave its level."
    rates, created = story.rates(rank).finite(), story.first("optimizer_created", rank)
    layers = max((len(event.fields.get("attention") or ()) for event in story.events("wiring", rank)), default=0)
    adaptive = created is not None and "adam" in str(created.fields.get("cls", "")).lower()
    if not len(rates) or not adaptive or layers < _DEEP:
        return cause
    first, most = float(rates.values[0]), float(rates.values.max())
    if first < 0.9 * most:
        cause.contradicts(f"the rate began at {first:.3g} and rose to {most:.3g}", 4, rates.evidence(0))
        return cause
    text = f"{layers} layers of attention, and the first update is made at the full rate of {first:.3g}"
    cause.supports(text, 2, rates.evidence(0))
    cause.whys.append(Why("How was it started?", wording.sentence(text), "", (rates.evidence(0),)))
    aligned = foresight.next_token(story, rank)
    if aligned:
        cause.supports("labels belong to their inputs: each target is the next token", 1.5, *aligned[:2])
    return cause


def _too_small(violation: Violation, case: Case) -> Hypothesis:
    """Fewer parameters than a table of the classes would need: there is hardly room for an answer."""
    cause = Hypothesis("underfitting")
    cause.action = "Give the model more room: wider layers, features that keep where things are."
    count = _parameters(case, violation.rank)
    text = f"the model has {wording.count(count, 'parameter')} for {violation.details['classes']:,} classes"
    proof = [event.id for event in case.story.events("tensor", violation.rank)[:2]]
    if _tiny(violation, case):
        cause.supports(text, 4, *proof)
        cause.whys.append(Why("Could it learn the task?", wording.sentence(text), "", tuple(proof)))
    else:
        cause.contradicts(text, 2, *proof)
    return cause


def _parameters(case: Case, rank: int) -> int:
    names = case.story.names
    return sum(tensor.numel for tensor in names.tensors(rank) if tensor.model and names.trained(rank, tensor))


def _tiny(violation: Violation, case: Case) -> bool:
    return 0 < _parameters(case, violation.rank) < _ROOM * int(violation.details["classes"])


def _flow(cause: Hypothesis, case: Case, rank: int) -> None:
    norms = case.story.norms(rank).finite()
    if not len(norms):
        cause.lacks("gradient norms")
        return
    middle = float(np.median(norms.values))
    if middle > 0:
        cause.supports(f"gradients flow (norm {middle:.3g})", 0.75, norms.evidence(len(norms) // 2))
    else:
        cause.contradicts("gradients are zero", 3, norms.evidence(len(norms) // 2))


def _movement(cause: Hypothesis, case: Case, violation: Violation) -> None:
    travelled = violation.details.get("travelled")
    if travelled is None:
        cause.lacks("how far the weights moved")
        return
    a_step = travelled / max(1, case.story.steps(violation.rank))
    if a_step > _EVERY_STEP:
        cause.contradicts(f"every update changes the weights by {a_step:.2g} of their size", 3, *violation.evidence)
    elif travelled < 0.05:
        cause.contradicts(f"the weights moved by {travelled:.2g} of their size in all", 2, *violation.evidence)
    else:
        cause.supports(f"the weights moved {travelled:.2g} times their own size", 0.75, *violation.evidence)


def _answers(cause: Hypothesis, case: Case, rank: int) -> None:
    """A model whose answer is the same for every input cannot be blamed on the labels."""
    looks = [
        event for event in curves.training_calls(case.story, rank)
        if event.step >= 4 and isinstance(event.fields.get("input"), dict)
    ]  # fmt: skip
    if not looks:
        return
    constant = [event for event in looks if event.fields["input"].get("constant")]
    if len(constant) * 2 > len(looks):
        cause.contradicts("the model answers the same for every input", 2, constant[-1].id)
    else:
        cause.supports("the model's answers differ from input to input", 0.5, looks[-1].id)
