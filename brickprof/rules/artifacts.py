"""Predictions about what a training leaves behind, or about two runs: not to be judged on one run.

Enters: a run. Leaves: FALSIFY-ALBOR-003 to 007 and 009 as NOT_EVALUATED, each with the command that judges it.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult
from brickprof.rules import outcomes
from brickprof.rules.story import Story


class Elsewhere:
    """A prediction that another command judges."""

    contract = ""
    why = ""

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        return outcomes.unjudged(contract, self.why)


class TwoSeeds(Elsewhere):
    contract = "FALSIFY-ALBOR-003"
    why = "it compares two runs of one seed: brickprof compare A B"


class Divergence(Elsewhere):
    contract = "FALSIFY-ALBOR-004"
    why = "it speaks of a divergence on 10,000 pairs, not of a run: brickprof check operator"


class Distilled(Elsewhere):
    contract = "FALSIFY-ALBOR-005"
    why = "it compares the scores of two models: brickprof check"


class Teacher(Elsewhere):
    contract = "FALSIFY-ALBOR-006"
    why = "it compares stored logits with a teacher's: brickprof check"


class Merged(Elsewhere):
    contract = "FALSIFY-ALBOR-007"
    why = "it speaks of merged weights, not of a run: brickprof check"


class Quantised(Elsewhere):
    contract = "FALSIFY-ALBOR-009"
    why = "it compares two precisions of one checkpoint: brickprof check"


RULES = (TwoSeeds, Divergence, Distilled, Teacher, Merged, Quantised)
