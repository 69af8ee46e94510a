"""C-FRESH-TRAIN-001: a new training begins at step 0, whatever the weights were trained for before.

Enters: a story. Leaves: a violation where a file's step came along with its weights, so that the loop was over before
it began, or had only the rest of its steps.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import declared, outcomes
from brickprof.rules.names import number, whole
from brickprof.rules.resumes import Resume, another_training, resumes
from brickprof.rules.story import Story

CONTRACT = "C-FRESH-TRAIN-001"
_TAILS = ((0.5, 0.5), (0.2, 0.8))
"""Of the rate that an optimizer was built with, where its tail begins, and what is left of that at the end."""
_NEXT_TO_NOTHING = 0.05


class FreshTraining:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        rank = story.ranks[0] if story.ranks else 0
        loads = [one for one in resumes(story, rank) if one.step > 0 and "model" in one.restored]
        made = max(declared.updates(story, rank).values(), default=0)
        if not loads:
            if not story.trained:
                return outcomes.vacuous(contract, "no training was observed")
            return outcomes.held(contract, "the run begins at step 0", "step 0")
        one = loads[-1]
        wanted = declared.amount(declared.only(declared.settings(story), "max_steps"))
        if not made and story.events("unused", rank) and declared.over(story, rank):
            return outcomes.broken(contract, [_violation(rank, one, story, "no update was made")], "step 0")
        tail = _begins_at_its_tail(story, rank, one)
        if tail is not None:
            return outcomes.broken(contract, [_violation(rank, one, story, tail)], "step 0")
        rest = wanted is not None and made and made + one.step == wanted and "optimizer" not in one.restored
        if rest and not one.certain and declared.over(story, rank):
            text = f"only {made:,} of {wanted:,.0f} steps were made"
            return outcomes.broken(contract, [_violation(rank, one, story, text)], "step 0")
        return outcomes.held(contract, f"{made:,} updates after loading a file of step {one.step:,}", "step 0")


def _begins_at_its_tail(story: Story, rank: int, one: Resume) -> str | None:
    """A new optimizer whose rate begins far below what it was built with and only falls: no schedule begins so."""
    if "optimizer" in one.restored or (one.certain and not another_training(story, rank, one)):
        return None
    for created in story.events("optimizer_created", rank):
        built = number(created.fields.get("built_lr"))
        at = whole(created.fields.get("optimizer"))
        rates = story.rates(rank, at).per_step().finite()
        if built is None or created.step < one.load.step or len(rates) < 8 or rates.steps[0] > created.step + 1:
            continue
        first, last = float(rates.values[0]), float(rates.values[-1])
        # The last steps may not have been looked at; from far down a part of the fall tells enough.
        falls = any(first <= part * built and last < left * first for part, left in _TAILS)
        if (falls or first <= _NEXT_TO_NOTHING * built) and bool(np.all(np.diff(rates.values) <= 0)):
            return (
                f"a new optimizer, built with a rate of {built:.3g}, began at {first:.3g} and ended at {last:.3g}: its "
                "schedule began at its tail"
            )
    return None


def _violation(rank: int, one: Resume, story: Story, what: str) -> Violation:
    finished = "optimizer" in one.restored
    evidence = (one.load.id, *(event.id for event in story.events("unused", rank)), *declared.end(story, rank))
    asked = declared.only(declared.settings(story), "max_steps")
    limit = f", beyond the last step ({asked.key} {asked.value})" if asked is not None else ""
    return Violation(
        CONTRACT, "no-steps", Severity.WARNING if finished else Severity.ERROR,
        f"{what}: the loaded file says step {one.step:,}{limit}", 0, 0, "", "step", rank, evidence,
        {"question": "Why was nothing trained?", "asked": "Where did the run begin?"},
        "resume-step-leaked", 0.6 if finished else 0.92,
        frozenset({"no-training", "sentinel", "exited", "spike", "diverged", "plateau", "not-learning", "schedule",
                   "resume"}),
        (Because("Where does that step come from?", f"Weights were taken from {one.load.fields.get('file') or 'a file'}"
                 f", and its step {one.step:,} with them; a new optimizer was built, and no state was put into it.", "",
                 evidence),),
        action="Begin at step 0 when weights are loaded for a new training; take the step only when the optimizer's "
        "state is restored too.",
        static=True,
    )  # fmt: skip


RULE = FreshTraining
