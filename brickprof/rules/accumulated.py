"""C-GA-001, its count: an update follows as many backwards as were declared.

Enters: a story. Leaves: a violation where gradient accumulation is declared and the optimizer steps after another
number of backwards. What a script states itself counts as well, where every update that was looked at follows one
backward of one batch: there the number is in force nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from statistics import median
from typing import TypeVar

from brickprof.contracts import spellings
from brickprof.contracts.schema import Contract
from brickprof.contracts.spellings import Setting
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import curves, declared, outcomes, stated, wording
from brickprof.rules.feasibility import micros
from brickprof.rules.names import whole
from brickprof.rules.story import Story

CONTRACT = "C-GA-001"
_FEWEST = 5
_ENOUGH = 16
_SIZES = ("batch_size", "global_batch_size")
_Place = TypeVar("_Place", bound=Hashable)
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
        if setting is None:
            return _by_the_script(story, rank, contract)
        if wanted is None or looked < _FEWEST:
            return outcomes.unjudged(contract, "no accumulation is declared, or too few steps were looked at")
        if seen == wanted or seen % wanted == 0:
            return outcomes.held(contract, f"an update every {_backwards(seen)}", f"{wanted:g} backwards an update")
        return outcomes.broken(contract, [_violation(story, rank, setting, wanted, looked, seen)], f"{wanted:g}")


def _by_the_script(story: Story, rank: int, contract: Contract) -> ContractResult:
    setting = stated.accumulation(story, rank)
    if setting is None:
        return outcomes.unjudged(contract, "no accumulation is declared")
    wanted = declared.amount(setting) or 1.0
    backwards = _counts(event.step for event in story.events("loss", rank))
    looked = len(backwards)
    needed = max(_FEWEST, int(min(wanted, _ENOUGH)))
    if looked < needed or not _one_by_one(story, rank, backwards):
        return outcomes.unjudged(contract, "the script states an accumulation, and some updates have several batches")
    if _drawn_at_once(story, rank, wanted):
        return outcomes.held(contract, f"a batch holds what {wanted:g} would: it is drawn at once", f"{wanted:g}")
    found = _violation(story, rank, setting, wanted, looked, 1, "the script says", Severity.WARNING, 0.85, needed)
    return outcomes.broken(contract, [found], f"{wanted:g}")


def _one_by_one(story: Story, rank: int, backwards: Counter[int]) -> bool:
    """Whether every looked-at update has one backward, of one call of the loss and one batch, and is cleared after."""
    if story.names.optimizers(rank) > 1 or max(backwards.values()) > 1:
        return False
    if any(whole(event.fields.get("micro")) for event in story.events("loss", rank)):
        return False
    calls = _counts((event.step, event.fields.get("site")) for event in curves.training_calls(story, rank))
    drawn = _counts(
        (event.step, event.fields.get("loader")) for event in story.events("batch", rank) if event.step in backwards
    )
    if max(calls.values(), default=1) > 1 or median(drawn.values() or [1]) > 1:
        return False
    return not any(whole(event.fields.get("held")) for event in story.events("held", rank))


def _counts(places: Iterable[_Place]) -> Counter[_Place]:
    return Counter(places)


def _drawn_at_once(story: Story, rank: int, wanted: float) -> bool:
    """Whether a step is given as many samples as the stated batches together."""
    said = [size for key, (value, _) in stated.values(story, rank).items()
            if spellings.canonical(key) in _SIZES and (size := spellings.number(value)) is not None]  # fmt: skip
    fed = {whole(event.fields.get("samples")) for event in story.events("batch", rank)}
    fed |= {whole(event.fields.get("rows")) for event in story.events("targets", rank)}
    return any(size * wanted in fed for size in said)


def short_of(story: Story, rank: int) -> int:
    """How many times too few backwards an update has; 1 where it has enough."""
    wanted = declared.amount(declared.only(declared.settings(story), "accumulation"))
    return round(wanted / micros(story, rank)[1]) if wanted else 1


def _violation(
    story: Story, rank: int, setting: Setting, wanted: float, looked: int, seen: int,
    source: str = "the configuration says", severity: Severity = Severity.ERROR, certainty: float = 0.92,
    needed: int = _FEWEST,
) -> Violation:  # fmt: skip
    evidence = tuple(each for each in (setting.source, *(e.id for e in story.events("loss", rank)[:2])) if each)
    size = f"{max(wanted, seen) / min(wanted, seen):.3g} times {'smaller' if wanted > seen else 'larger'}"
    return Violation(
        CONTRACT, "accumulation", severity,
        f"{source} {setting.key}: {wanted:g}, and an update follows every {_backwards(seen)}", 0, needed,
        "", "optimizer", rank, evidence,
        {"question": f"Is {setting.key} in force?", "asked": "Of how many backwards is an update made?"},
        "config-unused", certainty, _FOLLOW,
        (Because(f"Why has {setting.key} no effect?", f"In {looked:,} steps the optimizer stepped after "
                 f"{wording.count(seen, 'backward')}: the effective batch is {size} than declared.", "", evidence),),
        action=f"Call optimizer.step() and zero_grad() after {wanted:g} backwards, each loss divided by {wanted:g}.",
        static=True,
    )  # fmt: skip


def _backwards(count: int) -> str:
    return "backward" if count == 1 else wording.count(count, "backward")


RULE = Accumulated
