"""C-TRAINCFG-001, its arithmetic: the run makes the steps that its settings promise.

Enters: a story. Leaves: a violation where the run ended by itself before the declared number of steps because the data
of its epochs was used up; the arithmetic is in it.
"""

from __future__ import annotations

import math

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import declared, outcomes
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

CONTRACT = "C-TRAINCFG-001"
_FOLLOW = frozenset({
    "not-learning", "plateau", "slow-learning", "schedule", "small-updates", "underfitting", "config-unused",
})  # fmt: skip


class Feasibility:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        asked = declared.settings(story)
        wanted = declared.amount(declared.only(asked, "max_steps"))
        made = max(declared.updates(story, rank).values(), default=0) + declared.resumed_at(story, rank)
        if wanted is None or wanted <= 0:
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, why="no number of steps is declared")
        if made >= contract.threshold("reached") * wanted:
            return outcomes.held(contract, f"{made:,} of {wanted:,.0f} steps were made", "the declared steps are made")
        if not declared.over(story, rank) or any(name in asked for name in ("patience", "early_stopping")):
            return ContractResult(
                CONTRACT, Verdict.NOT_EVALUATED, why="the run did not end by itself, or may stop early"
            )
        sums = _arithmetic(story, rank, made)
        if sums is None:
            why = f"{made:,} of {wanted:,.0f} steps were made, and nothing says why it ended"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, f"{made:,} steps", why=why)
        return outcomes.broken(contract, [_violation(story, rank, wanted, made, *sums)], "the declared steps are made")


def _arithmetic(story: Story, rank: int, made: int) -> tuple[str, int, tuple[str, ...]] | None:
    """Why the data holds no more steps than were made: in words, in steps an epoch, and where it is written."""
    asked = declared.settings(story)
    loader = _loader(story, rank)
    accumulation = declared.amount(declared.only(asked, "accumulation")) or float(micros(story, rank)[1])
    epochs = declared.amount(declared.only(asked, "epochs")) or _epochs(story, rank)
    samples = declared.amount(declared.only(asked, "samples")) or (
        number(loader.fields.get("samples")) if loader else None
    )
    batch = declared.amount(declared.only(asked, "batch_size")) or (
        number(loader.fields.get("batch_size")) if loader else None
    )
    if not samples or not batch or not epochs or not accumulation:
        return None
    world = max(1, len(story.ranks))
    an_epoch = math.floor(samples / batch / accumulation / world)
    rounded = math.ceil(samples / batch / accumulation / world)
    if not an_epoch * epochs - 2 <= made <= (rounded + 1) * epochs:
        return None
    shards = f" / {world}" if world > 1 else ""
    text = f"steps_per_epoch = floor({samples:,.0f} / {batch:g} / {accumulation:g}{shards}) = {an_epoch:,}"
    text += f"; {epochs:g} epoch{'s' * (epochs != 1)} x {an_epoch:,} = {epochs * an_epoch:,.0f}"
    sources = [setting.source for name in ("max_steps", "epochs") for setting in asked.get(name, [])]
    return text, max(an_epoch, 1), tuple(dict.fromkeys([*sources, *([loader.id] if loader else [])]))


def _violation(
    story: Story, rank: int, wanted: float, made: int, sums: str, an_epoch: int, sources: tuple[str, ...]
) -> Violation:
    evidence = (*sources, *declared.end(story, rank))
    warmup = declared.amount(declared.only(declared.settings(story), "warmup_steps"))
    never = f"; the warm-up of {warmup:,.0f} steps never ends" if warmup and warmup >= made else ""
    symptom = f"the run ended by itself after {made:,} of {wanted:,.0f} declared steps{never}"
    return Violation(
        CONTRACT, "steps", Severity.ERROR, symptom, 0, max(made - 1, 0), "", "step", rank, evidence,
        {"question": "Why did the run end so soon?", "asked": "How many updates does the run make?"},
        "config-infeasible", 0.95, _FOLLOW,
        (Because("Why were there no more steps?", f"{sums} < {wanted:,.0f}.", "", evidence),),
        action=f"Use at least {math.ceil(wanted / an_epoch):,} epochs, a smaller accumulation, or declare the steps "
        "that the data holds (and a warm-up of 1 to 10 % of them).",
        static=True,
    )  # fmt: skip


def _loader(story: Story, rank: int) -> Event | None:
    trained = [event for event in story.events("loader", rank) if event.fields.get("train") is not False]
    return trained[0] if trained else None


def micros(story: Story, rank: int) -> tuple[int, int]:
    """In how many steps losses were looked at, and how many backwards the usual one of them has."""
    steps, at = np.unique(story.steps_of("loss", rank), return_inverse=True)
    passes = story.wholes("loss", "micro", rank)
    counts = np.zeros(len(steps), passes.dtype)
    np.maximum.at(counts, at, passes + 1)
    if len(counts) > 1:
        counts = counts[:-1]  # the last may not be over
    return len(counts), int(np.sort(counts)[len(counts) // 2]) if len(counts) else 1


def _epochs(story: Story, rank: int) -> float | None:
    seen = [whole(event.fields.get("epoch"), -1) for event in story.events("batch", rank)]
    return float(max(seen) + 1) if seen and max(seen) >= 0 else None


RULE = Feasibility
