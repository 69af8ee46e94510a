"""Why parameters get no gradient.

Enters: an incident of C-GRADFLOW-001 and the timeline. Leaves: no-gradient-path or dead-activations,
and what speaks against frozen parameters and a missing owner.
"""

from __future__ import annotations

from brickprof.bricks import Brick
from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.diagnosis.timeline import Timeline
from brickprof.rules import wording


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.what != "no-gradient":
        return []
    return [
        _no_path(violation, case.timeline),
        _dead(violation, case.timeline),
        _frozen(violation),
        _no_owner(violation),
    ]


def _no_path(violation: Violation, timeline: Timeline) -> Hypothesis:
    details, steps = violation.details, len(violation.details["steps"])
    cause = Hypothesis("no-gradient-path")
    none = "no gradient at all" if details["none"] else "a gradient of exactly zero"
    text = f"{details['tensor']} had {none} in {steps:,} steps that were looked at after the first updates"
    cause.supports(text, min(1.0 + 0.5 * steps, 4.0), *violation.evidence)
    text = f"{wording.count(details['flowing'], 'other parameter')} of the model had one in the same steps"
    cause.supports(text, 1, *details["flow_evidence"])
    if _given_zeros(violation, timeline):
        cause.contradicts(f"{details['given_zeros']}, of the same layer, has one", 3, *details["flow_evidence"])
    cause.whys.append(Why("Is the whole model cut off?", f"No: {text}.", violation.brick, details["flow_evidence"]))
    cause.whys.append(
        Why(
            "Where does the path end?",
            f"At {violation.brick}, the block nearest the loss that gets nothing: "
            "the loss does not depend on it through autograd "
            "(detach, .data, no_grad, or a custom backward that leaves a term out).",
            violation.brick,
            violation.evidence,
        )
    )
    cause.action = f"Look in the forward of {violation.brick} for detach(), .data, no_grad or a custom backward."
    cause.next_experiment = (
        "torch.autograd.grad(loss, parameter, allow_unused=True): None means it is not in the graph."
    )
    return cause


def _dead(violation: Violation, timeline: Timeline) -> Hypothesis:
    cause = Hypothesis("dead-activations")
    brick = violation.details.get("brick")
    if violation.details["none"]:
        cause.contradicts("the gradient is missing, not zero", 3, *violation.evidence)
        return cause
    dead = _around(brick, timeline) if isinstance(brick, Brick) else None
    if _given_zeros(violation, timeline):
        bias = violation.details["given_zeros"]
        what = f"{bias} has a gradient and {violation.details['tensor']} one of exactly zero"
        text = f"{what}: all that {violation.brick} is given is zero"
        cause.supports(text, 6, *violation.evidence)
        if dead is None:
            cause.whys.append(
                Why("Why is the gradient zero?", wording.sentence(text), violation.brick, violation.evidence)
            )
            _revive(cause)
            return cause
    if dead is not None:
        cause.supports(f"every output of {violation.brick} is zero", 6, dead)
        cause.whys.append(
            Why(
                "Why is the gradient zero?",
                f"Every output of {violation.brick} is zero.",
                violation.brick,
                (dead,),
            )
        )
        _revive(cause)
    elif timeline.outputs:
        cause.contradicts(f"the outputs around {violation.brick} are not all zero", 2)
    else:
        cause.lacks("outputs of the block (level standard, sampled steps)")
    return cause


def _given_zeros(violation: Violation, timeline: Timeline) -> bool:
    """Whether dead units stand before the layer: all that it is given is zero, what comes before it has gradients of
    zero and does not lack them, and nobody saw what blocks put out, such as those of compiled code."""
    details = violation.details
    brick = details.get("brick")
    if not details.get("given_zeros") or not details.get("zero_too") or details.get("missing_too"):
        return False
    return isinstance(brick, Brick) and not any(seen.path and seen.model == brick.model for seen in timeline.outputs)


def _revive(cause: Hypothesis) -> None:
    cause.action = "Lower the learning rate or change the initialisation or activation: these units are dead."
    cause.next_experiment = "Run with LeakyReLU in this block: the gradient comes back if the units were dead."


def _around(brick: Brick, timeline: Timeline) -> str | None:
    for candidate, point in timeline.dead.items():
        inside = f"{brick.path}.".startswith(f"{candidate.path}.") and candidate.path
        if candidate.model == brick.model and inside:
            return point.evidence
    return None


def _frozen(violation: Violation) -> Hypothesis:
    cause = Hypothesis("parameters-frozen")
    cause.contradicts("the parameter requires a gradient", 2, *violation.evidence[:1])
    return cause


def _no_owner(violation: Violation) -> Hypothesis:
    cause = Hypothesis("optimizer-missing-parameters")
    cause.contradicts("what is missing is the gradient, not the update", 2, *violation.evidence[:1])
    return cause
