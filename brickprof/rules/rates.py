"""C-TRAINCFG-001, its updates: they move the weights, and by more than decay.

Enters: a story. Leaves: a violation where the learning rate is so low that the weights cannot have moved in the whole
run while the loss stands still, and one where weight decay makes most of every update, the weights shrink and the loss
does not fall.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Excluded, Severity, Verdict, Violation
from brickprof.rules import declared, outcomes, progress, wording
from brickprof.rules.declared import Optimizer
from brickprof.rules.names import number
from brickprof.rules.story import Grid, Story
from brickprof.rules.story.grids import Floats

CONTRACT = "C-TRAINCFG-001"
_SMALL = 16
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
        found = [_too_low(story, rank, moved, contract), _decays(story, rank, contract)]
        violations = [violation for violation in found if violation is not None]
        if violations:
            return outcomes.broken(contract, violations[:1], "updates move the weights")
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
    lr = f"lr {rate:.3g}: " if math.isfinite(rate) else ""
    evidence = (*moved.evidence, *rates.evidences([len(rates) - 1] if len(rates) else []))
    symptom = f"{lr}the largest update is {moved.largest:.2g} of the weights, {far:.2%} in all {updates:,} updates"
    flow = f"gradients flow (|g| {float(np.median(norms)):.2g})"
    return Violation(
        CONTRACT, "small-updates", Severity.ERROR, symptom, moved.first, min(updates - 1, int(losses.steps[-1])), "",
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


def _ordinary(story: Story, rank: int, contract: Contract) -> float:
    """The rate from which on small updates are somebody else's fault."""
    plain = any(one.cls in ("SGD", "ASGD") for one in declared.optimizers(story, rank))
    return contract.threshold("low_rate_of_sgd" if plain else "low_rate")


def _better(rate: float, usual: float) -> str:
    return f"about {rate * 1e-3 / usual:.1g}" if math.isfinite(rate) and usual > 0 else "by orders of magnitude"


def _decays(story: Story, rank: int, contract: Contract) -> Violation | None:
    for one in declared.optimizers(story, rank):
        decay = max(one.values("weight_decay"), default=0.0)
        updates = declared.updates(story, rank).get(one.number, 0)
        if decay <= 0 or updates < contract.threshold("fewest_updates"):
            continue
        found = _shrinking(story, one, decay, contract)
        if found is not None and _loss_gains_nothing(story, rank):
            return _too_strong(story, one, decay, *found)
    return None


def _shrinking(
    story: Story, one: Optimizer, decay: float, contract: Contract
) -> tuple[float, float, tuple[str, ...], int] | None:
    """The share of decay in the updates and what is left of the weights, where both speak of too much decay."""
    weights, moves = story.grid("weight", one.rank), story.grid("update", one.rank)
    if len(weights) < 3 or len(moves) < 3:
        return None
    share = _share(story, one, decay, weights, moves)
    norms = np.sqrt(np.nansum(np.square(np.where(np.isfinite(weights.l2), weights.l2, np.nan)), axis=1))
    if share is None or not len(norms) or norms[0] <= 0:
        return None
    left, last = float(norms[-1] / norms[0]), len(weights) - 1
    if share < contract.threshold("decay_share") or left > contract.threshold("weights_left"):
        return None
    largest = int(np.nanargmax(np.where(np.isfinite(weights.l2[0]), weights.l2[0], -1)))
    evidence = (weights.evidence(0, largest), weights.evidence(last, largest), *one.evidence[-1:])
    return share, left, evidence, int(weights.steps[min(2, last)])


def _share(story: Story, one: Optimizer, decay: float, weights: Grid, moves: Grid) -> float | None:
    """How much of the usual update is decay: of the step for decoupled decay, of the gradient for the other kind."""
    if _decoupled(one):
        rates = story.rates(one.rank, one.number).finite()
        if not len(rates):
            return None
        ratios: Floats = moves.ratio[np.isfinite(moves.ratio) & (moves.ratio > 0)]
        return float(np.median(rates.values)) * decay / float(np.median(ratios)) if len(ratios) else None
    grads = story.grid("grad", one.rank)
    if not len(grads):
        return None
    pull = decay * float(np.median(weights.total))
    push = float(np.median(grads.total))
    return pull / (pull + push) if pull + push > 0 else None


def _decoupled(one: Optimizer) -> bool:
    return one.cls in ("AdamW", "Lion") or any(group.get("decoupled_weight_decay") for group in one.groups)


def _loss_gains_nothing(story: Story, rank: int) -> bool:
    """The loss stands, or rises again from the lowest it had."""
    losses = story.losses(rank).finite()
    if progress.stands(losses, least=0.05):
        return True
    half = losses.since(int(losses.steps[len(losses) // 4])) if len(losses) >= 40 else None
    fell = progress.fall(half) if half is not None else None
    return fell is not None and fell < 0.01


def _too_strong(
    story: Story, one: Optimizer, decay: float, share: float, left: float, evidence: tuple[str, ...], seen: int
) -> Violation:
    rate = number(story.rates(one.rank, one.number).finite().values.max()) or math.nan
    kind = "each update takes lr x decay off the weights" if _decoupled(one) else "decay is part of the gradient"
    return Violation(
        CONTRACT, "decay", Severity.ERROR,
        f"weight decay {decay:g} rules the updates: the weights shrank to {left:.0%} of their size and the loss gains "
        "nothing", 0, seen, "", "optimizer", one.rank, evidence,
        {"question": "What moves the weights?", "asked": "What moves the weights?"},
        "weight-decay-too-strong", 0.88, _STILL | {"vanishing", "dead-units"},
        (Because("Why do the weights shrink?", wording.sentence(
            f"{kind} (lr {rate:.3g}, decay {decay:g}): {min(share, 1):.0%} of the usual update"), "", evidence),),
        action=f"Lower weight_decay from {decay:g} to 0.01-0.1 (AdamW) or 1e-4 (SGD, Adam).", static=True,
    )  # fmt: skip


RULE = Updates
