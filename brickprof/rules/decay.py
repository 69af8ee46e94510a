"""C-HYPERPARAMS-001, its decay: weight decay does not rule the updates.

Enters: a story. Leaves: a violation where decay makes a large part of every update, and either the weights forget
everything within a few updates (lr x decay), or they shrink and the loss gains nothing.
"""

from __future__ import annotations

import math

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.rules import declared, outcomes, progress, wording
from brickprof.rules.declared import Optimizer
from brickprof.rules.names import number
from brickprof.rules.story import Grid, Story
from brickprof.rules.story.grids import Floats

CONTRACT = "C-HYPERPARAMS-001"
_FOLLOW = frozenset({"not-learning", "plateau", "slow-learning", "underfitting", "vanishing", "dead-units"})


class Decay:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        found = _decays(story, story.ranks[0], contract)
        if found is not None:
            return outcomes.broken(contract, [found], "decay is less than the rest of an update")
        return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, why="decay is not what moves the weights", aside=True)


def _decays(story: Story, rank: int, contract: Contract) -> Violation | None:
    for one in declared.optimizers(story, rank):
        decay = max(one.values("weight_decay"), default=0.0)
        updates = declared.updates(story, rank).get(one.number, 0)
        if decay <= 0 or updates < contract.threshold("fewest_updates"):
            continue
        found = _shrinking(story, one, decay, contract)
        if found is not None and (_forgets(story, one, decay, contract) or _loss_gains_nothing(story, rank)):
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
    shrank = left <= contract.threshold("weights_left") or _forgets(story, one, decay, contract)
    hard = _forgets(story, one, decay, contract, "decay_rate_of_growing_weights")
    held_back = left >= 1 and not (hard and _loss_gains_nothing(story, one.rank))
    if share < contract.threshold("decay_share") or not shrank or held_back:
        return None
    largest = int(np.nanargmax(np.where(np.isfinite(weights.l2[0]), weights.l2[0], -1)))
    evidence = (weights.evidence(0, largest), weights.evidence(last, largest), *one.evidence[-1:])
    return share, left, evidence, int(weights.steps[min(2, last)])


def _forgets(story: Story, one: Optimizer, decay: float, contract: Contract, limit: str = "decay_rate") -> bool:
    """Whether decoupled decay alone halves the weights within a few dozen updates."""
    rates = story.rates(one.rank, one.number).finite().values
    return bool(_decoupled(one) and len(rates) and float(np.median(rates)) * decay >= contract.threshold(limit))


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
    done = f"the weights shrank to {left:.0%} of their size"
    if left >= 1:
        done = f"each takes {rate * decay:.0%} off the weights, and the loss stands still"
    return Violation(
        CONTRACT, "decay", Severity.ERROR,
        f"weight decay {decay:g} rules the updates: {done}", 0, seen, "", "optimizer", one.rank, evidence,
        {"question": "What moves the weights?", "asked": "What moves the weights?"},
        "weight-decay-too-strong", 0.88, _FOLLOW,
        (Because("What does decay do here?", wording.sentence(
            f"{kind} (lr {rate:.3g}, decay {decay:g}): {min(share, 1):.0%} of the usual update"), "", evidence),),
        action=f"Lower weight_decay from {decay:g} to 0.01-0.1 (AdamW) or 1e-4 (SGD, Adam).", static=True,
    )  # fmt: skip


RULE = Decay
