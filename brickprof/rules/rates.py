"""C-TRAINCFG-001, its updates: they move the weights.

Enters: a story. Leaves: a violation where the learning rate is so low that the weights cannot have moved in the whole
run while the loss stands still.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Excluded, Severity, Verdict, Violation
from brickprof.rules import curves, declared, divergence, freezing, outcomes, progress, wording
from brickprof.rules.names import number
from brickprof.rules.story import Grid, Story

CONTRACT = "C-TRAINCFG-001"
_SMALL = 16
_LONG_ENOUGH = 100
_STILL = frozenset({"not-learning", "plateau", "slow-learning", "underfitting"})


class _Movement(NamedTuple):
    """How far the weights move: the largest and the usual update, relative to the weights."""

    largest: float
    usual: float
    evidence: tuple[str, ...]
    looks: int
    first: int


class Updates:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        moved = _movement(story.grid("update", rank))
        if moved is None:
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, why="no update was looked at")
        found = _too_low(story, rank, moved, contract) or _crawls(story, rank, contract)
        if found is not None:
            return outcomes.broken(contract, [found], "updates move the weights")
        observed = f"updates of {moved.usual:.2g} of the weights"
        return outcomes.held(contract, observed, "updates move the weights")


def _movement(grid: Grid) -> _Movement | None:
    """Over tensors large enough to have a size; one that is all zero has no ratio."""
    if not len(grid) or not len(grid.tensors):
        return None
    large = np.nanmax(np.where(np.isfinite(grid.numel), grid.numel, 0), axis=0) >= _SMALL
    ratios = np.where(large[None, :] & np.isfinite(grid.ratio), grid.ratio, np.nan)
    if not np.isfinite(ratios).any():
        return None
    look, place = np.unravel_index(int(np.nanargmax(ratios)), ratios.shape)
    evidence = (grid.evidence(int(look), int(place)),)
    return _Movement(float(ratios[look, place]), float(np.nanmedian(ratios)), evidence, len(grid), int(grid.steps[0]))


def _too_low(story: Story, rank: int, moved: _Movement, contract: Contract) -> Violation | None:
    updates = max(declared.updates(story, rank).values(), default=0)
    far = moved.largest * updates
    small = moved.largest < contract.threshold("update_ratio") and far < contract.threshold("movement")
    if updates < contract.threshold("fewest_updates") or moved.looks < 3 or not small:
        return None
    losses = story.losses(rank)
    norms = story.norms(rank).finite().values
    if not progress.stands(losses) or not len(norms) or float(np.median(norms)) < 1e-7:
        return None
    rates = story.rates(rank).finite()
    rate = float(rates.values.max()) if len(rates) else math.nan
    if rate > _ordinary(story, rank, contract):
        return None  # the gradients are small, not the rate
    lr = f"the learning rate is {rate:.3g}: " if math.isfinite(rate) else ""
    evidence = (*moved.evidence, *rates.evidences([len(rates) - 1] if len(rates) else []))
    symptom = f"{lr}the largest update is {moved.largest:.2g} of the weights, {far:.2%} in all {updates:,} updates"
    seen = min(moved.first + int(contract.threshold("fewest_updates")), int(losses.steps[-1]))
    flow = f"gradients flow (|g| {float(np.median(norms)):.2g})"
    return Violation(
        CONTRACT, "small-updates", Severity.ERROR, symptom, moved.first, seen, "",
        "optimizer", rank, evidence,
        {"question": "Do the updates move the weights?", "asked": "How far do the weights move?"},
        "learning-rate-too-low", 0.88, _STILL,
        (Because("Why do the weights not move?", wording.sentence(
            f"{flow}, and the learning rate makes almost nothing of them: ordinary updates are 1e-3 of the weights"),
            "", evidence),),
        (Excluded("no-gradient-path", flow, story.norms(rank).evidences([0])),),
        action=f"Raise the learning rate: {_better(rate, moved.usual)} would bring updates to 1e-3 of the weights.",
        static=True,
    )  # fmt: skip


def _crawls(story: Story, rank: int, contract: Contract) -> Violation | None:
    """A model that knew nothing, a loss that still falls at the end, and weights that have hardly left their start."""
    moves, losses = divergence.moved(story, rank), story.losses(rank).finite()
    rates, updates = story.rates(rank).finite(), max(declared.updates(story, rank).values(), default=0)
    if moves is None or not len(rates) or updates < _LONG_ENOUGH or len(moves.shares) < 3 or len(losses) < updates // 2:
        return None
    way, rate = float(np.mean(moves.shares)) * updates, float(rates.values.max())
    plain = any(one.cls in ("SGD", "ASGD") for one in declared.optimizers(story, rank))
    if (
        plain
        or freezing.loaded(story, rank)
        or way >= contract.threshold("way")
        or rate >= contract.threshold("low_rate")
    ):
        return None
    falling = curves.slope(losses.values[len(losses) // 2 :]) < -3
    if not declared.over(story, rank) or not falling or not _knew_nothing(story, rank, float(losses.values[0])):
        return None
    evidence = (
        *moves.evidence,
        *rates.evidences([int(np.argmax(rates.values))]),
        *losses.evidences((0, len(losses) - 1)),
    )
    symptom = (
        f"the learning rate is {rate:.3g} at most: all {updates:,} updates moved the weights by {way:.2%} of their size"
    )
    return Violation(
        CONTRACT, "small-updates", Severity.WARNING, symptom, 0, int(losses.steps[-1]), "", "optimizer", rank, evidence,
        {"question": "Do the updates move the weights?", "asked": "How far do the weights move?"},
        "learning-rate-too-low", 0.75, _STILL,
        (Because("Is the model trained?", f"It began with a loss of {float(losses.values[0]):.4g}, as one does that "
                 "knows nothing, and the loss still falls at the end: a new model moves further.", "", evidence),),
        action=f"Raise the learning rate 10 to 100 times (it is {rate:.3g}), or train much longer.", static=True,
    )  # fmt: skip


def _knew_nothing(story: Story, rank: int, first: float) -> bool:
    """Whether the first loss is no better than an answer that does not look at the question."""
    guess = curves.chance(story, rank)
    if guess is not None:
        return first >= 0.9 * guess.level
    calls = [e for e in curves.training_calls(story, rank) if e.fields.get("name") == "mse"]
    spreads = [std for e in calls if isinstance(target := e.fields.get("target"), dict)
               and (std := number(target.get("std"))) is not None]  # fmt: skip
    return len(spreads) >= 3 and first >= 0.9 * float(np.median(spreads)) ** 2 > 0


def _ordinary(story: Story, rank: int, contract: Contract) -> float:
    """The rate from which on small updates are somebody else's fault."""
    plain = any(one.cls in ("SGD", "ASGD") for one in declared.optimizers(story, rank))
    return contract.threshold("low_rate_of_sgd" if plain else "low_rate")


def _better(rate: float, usual: float) -> str:
    return f"about {rate * 1e-3 / usual:.1g}" if math.isfinite(rate) and usual > 0 else "by orders of magnitude"


RULE = Updates
