"""C-BATCH-001: the batch is the declared one, and large enough for a large model.

Enters: a story. Leaves: a violation where the training's loader hands out another batch than the one declared, and a
remark where a large model sees few tokens in an update.
"""

from __future__ import annotations

import math

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes
from brickprof.rules.names import number
from brickprof.rules.story import Story

CONTRACT = "C-BATCH-001"


class Batches:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        asked = declared.settings(story)
        wanted = declared.amount(declared.only(asked, "batch_size"))
        sizes = {size: event for event in _loaders(story, rank) if (size := number(event.fields.get("batch_size")))}
        small = _few_tokens(story, rank, contract)
        if small is not None:
            return outcomes.broken(contract, [small], f"{contract.threshold('effective_tokens'):,.0f} tokens an update")
        if wanted is None or not sizes:
            return outcomes.unjudged(contract, "no batch size is declared, or no loader of torch was seen")
        if any(math.isclose(size, want) for size in sizes for want in _forms(story, rank, wanted)):
            return outcomes.held(contract, f"batches of {wanted:g} as declared", f"{wanted:g}")
        return outcomes.broken(contract, [_violation(story, rank, wanted, sizes)], f"{wanted:g}")


def _loaders(story: Story, rank: int) -> list[Event]:
    return [event for event in story.events("loader", rank) if event.fields.get("train") is not False]


def _forms(story: Story, rank: int, wanted: float) -> set[float]:
    """The declared batch as one loader may hand it out: whole, a rank's part, a micro-batch of it."""
    asked = declared.settings(story)
    ranks = {1.0, float(len(story.ranks)), declared.amount(declared.only(asked, "world_size")) or 1.0}
    micro = {1.0, declared.amount(declared.only(asked, "accumulation")) or 1.0}
    both = {one * other for one in ranks for other in micro}
    listed = {value for each in asked.get("batch_size", []) if (value := number(each.value))}
    return {form for size in {wanted, *listed} for part in both for form in (size / part, size * part)}


def _violation(story: Story, rank: int, wanted: float, sizes: dict[float, Event]) -> Violation:
    setting = declared.settings(story)["batch_size"][0]
    size, event = next(iter(sizes.items()))
    evidence = (setting.source, event.id)
    return Violation(
        CONTRACT, "config-unused", Severity.WARNING,
        f"{setting.key} is {wanted:g}, and the training's loader hands out batches of {size:g}", 0, event.step, "",
        "loader", rank, evidence,
        {"question": f"Is {setting.key} in force?", "asked": "How large is a batch?", "key": setting.key},
        "config-unused", 0.85, frozenset({"spike", "slow", "plateau"}),
        (Because("Why has it no effect?", f"The loader was built with batch_size={size:g}.", "", evidence),),
        action=f"Build the DataLoader with batch_size={wanted:g} from the configuration.", static=True,
    )  # fmt: skip


def _few_tokens(story: Story, rank: int, contract: Contract) -> Violation | None:
    from brickprof.contracts.algebra import plan

    tokens = plan(declared.settings(story)).tokens_per_step
    sizes = [number(event.fields.get("parameters")) or 0.0 for event in story.events("model", rank)]
    least = contract.threshold("effective_tokens")
    if tokens is None or max(sizes, default=0.0) < contract.threshold("large_model_parameters") or tokens >= least:
        return None
    return Violation(
        CONTRACT, "small-batch", Severity.INFO,
        f"an update sees {tokens:,.0f} tokens; a model of {max(sizes):,.0f} parameters wants {least:,.0f}", 0, 0, "",
        "step", rank, tuple(event.id for event in story.events("model", rank)[:1]), {}, "config-infeasible", 0.5,
        action="Raise the batch, the accumulation or the number of ranks.", static=True,
    )  # fmt: skip


RULE = Batches
