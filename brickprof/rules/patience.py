"""C-AUTOEVAL-001: patience that is declared is kept.

Enters: a story. Leaves: a violation where many more evaluations than the declared patience followed the best one.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import declared, outcomes, wording
from brickprof.rules.story import Story, Track

CONTRACT = "C-AUTOEVAL-001"


class Patience:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        setting = declared.only(declared.settings(story), "patience")
        losses = story.track("evaluation", "loss", rank).finite()
        patience = declared.amount(setting)
        if not len(losses):
            return outcomes.unjudged(contract, "no evaluation with a loss was seen")
        if setting is None or not patience:
            return outcomes.unjudged(contract, "no patience is declared")
        best = int(np.argmin(losses.values))
        after = len(losses) - 1 - best
        if after <= patience + contract.threshold("slack"):
            observed = f"{wording.count(after, 'evaluation')} after the best"
            return outcomes.held(contract, observed, f"{patience:g}")
        return outcomes.broken(contract, [_violation(rank, losses, best, patience, setting.key, setting.source)],
                               f"{patience:g} evaluations after the best")  # fmt: skip


def _violation(rank: int, losses: Track, best: int, patience: float, key: str, source: str) -> Violation:
    after = len(losses) - 1 - best
    evidence = (source, losses.evidence(best), losses.evidence(len(losses) - 1))
    due = min(best + int(patience) + 1, len(losses) - 1)
    return Violation(
        CONTRACT, "config-unused", Severity.WARNING,
        f"{key} is {patience:g}, and {after:,} evaluations followed the best one ({losses.values[best]:.4g} in step "
        f"{int(losses.steps[best]):,})", int(losses.steps[best]), int(losses.steps[due]), "", "step", rank, evidence,
        {"question": "Does the run stop when it gets no better?", "asked": "Why did nothing stop it?"},
        "config-unused", 0.85, frozenset({"overfitting"}),
        (Because(f"Why has {key} no effect?", "Nothing ended the run when the patience was used up.", "", evidence),),
        action="Compare the evaluations since the best one with the patience after each evaluation.",
    )  # fmt: skip


RULE = Patience
