"""Violations that are causes themselves: the rule that saw the mechanism has said everything.

Enters: a violation with a ``cause``. Leaves: one hypothesis, as certain as the rule says it is.
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Violation
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.hypotheses import Hypothesis
from brickprof.diagnosis.model import Why


def hypotheses(violation: Violation, case: Case) -> list[Hypothesis]:
    if not violation.mechanism:
        return []
    cause = Hypothesis(violation.cause, action=violation.action, next_experiment=violation.experiment)
    cause.supports(violation.symptom, Hypothesis.weight_of(violation.certainty), *violation.evidence)
    cause.whys = [Why(why.question, why.finding, why.brick, why.evidence) for why in violation.whys]
    rivals = []
    for out in violation.excluded:
        rival = Hypothesis(out.root_cause)
        rival.contradicts(out.because, 2, *out.evidence)
        rivals.append(rival)
    return [cause, *rivals]
