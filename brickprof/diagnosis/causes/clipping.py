"""Gradients that nothing held, and what the optimizer made of them.

Enters: a violation that is a missing clip, and everything else that was found broken. Leaves: the same cause once more,
with the optimizer's own fault in its chain where there is one: values that are not the declared ones decide what an
update makes of gradients that are out of bounds.
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why
from brickprof.rules import wording

_CAUSE = "grad-clip-not-applied"
_MOST = 3
"""Whys of the mechanism; the symptom and the mechanism itself come before them."""


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if violation.cause != _CAUSE or not violation.details.get("exploded"):
        return []
    other = next((each for each in case.violations if each.cause == "optimizer-hyperparameters-mismatch"), None)
    if other is None:
        return []
    cause = Hypothesis(
        _CAUSE, action=f"{violation.action} {other.action}".strip(), next_experiment=violation.experiment
    )
    cause.supports(violation.symptom, Hypothesis.weight_of(violation.certainty), *violation.evidence)
    cause.supports(other.symptom, 1, *other.evidence)
    own = [Why(why.question, why.finding, why.brick, why.evidence) for why in violation.whys]
    # The declaration stands in the violation's own sentence already.
    kept = own[: _MOST - 1]
    made = Why("What did the optimizer make of them?", wording.sentence(other.symptom), "", other.evidence)
    cause.whys = [*kept[:-1], made, *kept[-1:]]
    return [cause]
