"""C-GA-001, its count: an update follows as many backwards as were declared.

Enters: a story. Leaves: a violation where gradient accumulation is declared and the optimizer steps after another
number of backwards.
"""

from __future__ import annotations

from brickprof.contracts.schema import Contract
from brickprof.contracts.spellings import Setting
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import declared, outcomes, wording
from brickprof.rules.feasibility import micros
from brickprof.rules.story import Story

CONTRACT = "C-GA-001"
_FEWEST = 5
_FOLLOW = frozenset({"slow", "spike", "plateau", "diverged", "accumulation", "config-unused", "schedule"})


class Accumulated:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        setting = declared.only(declared.settings(story), "accumulation")
        wanted = declared.amount(setting)
        looked, seen = micros(story, rank)
        if setting is None or wanted is None or looked < _FEWEST:
            return outcomes.unjudged(contract, "no accumulation is declared, or too few steps were looked at")
        if seen == wanted or seen % wanted == 0:
            return outcomes.held(contract, f"an update every {_backwards(seen)}", f"{wanted:g} backwards an update")
        return outcomes.broken(contract, [_violation(story, rank, setting, wanted, looked, seen)], f"{wanted:g}")


def short_of(story: Story, rank: int) -> int:
    """How many times too few backwards an update has; 1 where it has enough."""
    wanted = declared.amount(declared.only(declared.settings(story), "accumulation"))
    return round(wanted / micros(story, rank)[1]) if wanted else 1


def _violation(story: Story, rank: int, setting: Setting, wanted: float, looked: int, seen: int) -> Violation:
    evidence = tuple(each for each in (setting.source, *(e.id for e in story.events("loss", rank)[:2])) if each)
    size = f"{max(wanted, seen) / min(wanted, seen):.3g} times {'smaller' if wanted > seen else 'larger'}"
    return Violation(
        CONTRACT, "accumulation", Severity.ERROR,
        f"the configuration says {setting.key}: {wanted:g}, and an update follows every {_backwards(seen)}", 0, _FEWEST,
        "", "optimizer", rank, evidence,
        {"question": f"Is {setting.key} in force?", "asked": "Of how many backwards is an update made?"},
        "config-unused", 0.92, _FOLLOW,
        (Because(f"Why has {setting.key} no effect?", f"In {looked:,} steps the optimizer stepped after "
                 f"{wording.count(seen, 'backward')}: the effective batch is {size} than declared.", "", evidence),),
        action=f"Call optimizer.step() and zero_grad() after {wanted:g} backwards, each loss divided by {wanted:g}.",
        static=True,
    )  # fmt: skip


def _backwards(count: int) -> str:
    return "backward" if count == 1 else wording.count(count, "backward")


RULE = Accumulated
