"""C-INTERLEAVED-001 and C-BACKPARITY-001: many optimizers in turn, and gradients against those of a reference run.

Enters: the story. Leaves: one result each. A run with one optimizer has nothing interleaved. Gradients have something
to agree with only where a golden run was given; without one that is said, and nothing is passed.
"""

from __future__ import annotations

import math

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.rules import wording
from brickprof.rules.handling import plain_number
from brickprof.rules.story import Story

INTERLEAVED, BACKPARITY = "C-INTERLEAVED-001", "C-BACKPARITY-001"
_REFERENCE = ("lr_ref", "reference_lr")


class Interleaved:
    """One optimizer for each block makes one update of L small ones: the rate has to shrink with L."""

    contract = INTERLEAVED

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "lr <= lr_ref / sqrt(1 + (L - 1) / 2)"
        rank = story.ranks[0] if story.ranks else 0
        blocks = story.names.optimizers(rank)
        if blocks < contract.threshold("optimizers"):
            why = f"{wording.count(blocks, 'optimizer')}: nothing is interleaved"
            return ContractResult(INTERLEAVED, Verdict.VACUOUS, "", threshold, why)
        jump = _jump(story, rank, contract)
        if jump is not None:
            return ContractResult(INTERLEAVED, Verdict.FAIL, jump.symptom, threshold, jump.symptom, (jump,))
        return _rate(story, rank, blocks, threshold)


def _rate(story: Story, rank: int, blocks: int, threshold: str) -> ContractResult:
    named = [value for key, (value, _) in story.declared.items() if key.lower().rpartition(".")[2] in _REFERENCE]
    reference = next((found for value in named if (found := plain_number(value)) is not None), None)
    rates = story.track("optimizer", "lr", rank).finite().values
    if reference is None or not len(rates):
        why = f"{blocks:,} optimizers take turns, and no reference rate (lr_ref) is declared"
        return ContractResult(INTERLEAVED, Verdict.NOT_EVALUATED, "", threshold, why)
    limit = reference / math.sqrt(1 + (blocks - 1) / 2)
    observed = f"lr {float(rates.max()):.3g} with {blocks:,} optimizers; at most {limit:.3g}"
    verdict = Verdict.PASS if float(rates.max()) <= limit * 1.001 else Verdict.FAIL
    return ContractResult(INTERLEAVED, verdict, observed, threshold)


def _jump(story: Story, rank: int, contract: Contract) -> Violation | None:
    """Perplexity that more than doubles from one evaluation to the next."""
    losses = story.track("evaluation", "loss", rank).finite()
    rises = np.flatnonzero(np.diff(losses.values) > math.log(contract.threshold("perplexity_jump")))
    if not len(rises):
        return None
    place = int(rises[0]) + 1
    before, after = float(losses.values[place - 1]), float(losses.values[place])
    symptom = f"the evaluation loss rose from {before:.4g} to {after:.4g} in step {int(losses.steps[place]):,}"
    step = int(losses.steps[place])
    return Violation(
        INTERLEAVED, "spike", Severity.WARNING, symptom, step, step, "", "optimizer", rank,
        losses.evidences((place - 1, place)),
        {"question": "Why did the evaluation loss jump?", "at": step, "recovered": False},
    )  # fmt: skip


class BackParity:
    """Gradients of a group within a factor of two of the golden run's."""

    contract = BACKPARITY

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = f"ratio in ({contract.threshold('low'):g}, {contract.threshold('high'):g}) for every group"
        if not story.trained:
            return ContractResult(BACKPARITY, Verdict.VACUOUS, "", threshold, "no training was observed")
        why = "no golden gradients of a reference run were given"
        return ContractResult(BACKPARITY, Verdict.NOT_EVALUATED, "", threshold, why)


RULES = (Interleaved, BackParity)
