"""C-COSINE-001, its beginning: the first updates leave the way of the gradients through a stack of layers open.

Enters: a story: gradients layer by layer in the first looks, rates. Leaves: a violation where an adaptive optimizer
began with the highest rate of its schedule, and the gradients of the first layers, sound before the first update, were
a fraction of those of the last ones a few updates later. The moments of such an optimizer are of few gradients then,
and its updates as large as the rate allows.

It is a fault where it lasted for many updates in which the loss hardly fell. Where the looks end with the first
updates, it is worth knowing and no more: it may have been made good since.
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import curves, declared, layers, outcomes
from brickprof.rules.layers import Stack
from brickprof.rules.story import Grid, Story
from brickprof.rules.story.tracks import Floats

CONTRACT = "C-COSINE-001"
_FEWEST = 4
_FALLS = 0.9
_FOLLOW = frozenset({"plateau", "not-learning", "slow-learning", "underfitting"})


class WarmupEffect:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        rank = story.ranks[0]
        grid = story.grid("grad", rank)
        if len(grid) < _FEWEST or grid.steps[0] != 0 or not _begins_at_its_peak(story, rank):
            return outcomes.aside(contract, "no schedule begins at its peak, or the first updates were not seen")
        stacks = [stack for stack in layers.stacks(story, grid) if stack.composite]
        if not stacks:
            return outcomes.aside(contract, "there is no stack of layers that gradients could be lost in")
        for stack in stacks:
            violation = _cut_off(story, rank, grid, stack, contract)
            if violation is not None:
                return outcomes.broken(contract, [violation], "gradients reach the first layers")
        return outcomes.held(contract, "the first updates left the gradients of all layers in proportion")


def _begins_at_its_peak(story: Story, rank: int) -> bool:
    """One adaptive optimizer, not resumed, whose rate falls from its first update on."""
    found = declared.optimizers(story, rank)
    if len(found) != 1 or not found[0].pairs() or declared.resumed_at(story, rank) or story.events("restored", rank):
        return False
    rates = story.rates(rank, found[0].number).finite().values
    return len(rates) >= _FEWEST and rates[0] >= rates.max() > 0 and rates[-1] < _FALLS * rates[0]


def _cut_off(story: Story, rank: int, grid: Grid, stack: Stack, contract: Contract) -> Violation | None:
    early = int(contract.threshold("early_updates"))
    sizes = np.asarray([stack.sizes(grid, look) for look in range(len(grid))])
    first, last = sizes[:, 0], sizes[:, -1]
    if not np.isfinite(sizes[:, [0, -1]]).all() or not (first[0] > 0 and (last > 0).all()):
        return None
    reach = first / last
    within, alive = reach / reach[0], last / last[0]
    low, sound = contract.threshold("cut_off"), contract.threshold("in_proportion")
    begun = grid.steps <= early
    steady = bool(((alive >= sound) & (alive <= 1 / sound))[begun].all())
    if not steady or not sound <= reach[0] <= 1 / sound or begun.sum() < _FEWEST:
        return None  # it was so before any update, or the gradients changed as a whole
    falls = within[begun].min() <= low and bool((np.diff(within[begun][:_FEWEST]) < 0).all())
    bottom = int(np.argmin(within[begun]))
    back = np.flatnonzero(within[bottom:] > 2 * low)
    end = bottom + int(back[0]) if len(back) else len(grid)
    only_early = bool(begun.all()) and end == len(grid)
    lasting = _lasted(story, rank, grid, end, early)
    if not falls or not (only_early or lasting):
        return None
    known = int(grid.steps[grid.steps >= 2 * early][0]) if lasting else int(grid.steps[begun][-1])
    return _violation(story, rank, grid, stack, within, low, lasting, known)


def _lasted(story: Story, rank: int, grid: Grid, end: int, early: int) -> bool:
    """Whether the looks before ``end`` go far beyond the first updates, and the loss had hardly fallen by then."""
    curve, until = curves.curve(story, rank), int(grid.steps[end - 1])
    if int((grid.steps[:end] > early).sum()) < 2 or until < 2 * early:
        return False
    seen = curve.values[curve.track.steps <= until]
    return curve.comparable and len(seen) > 0 and float(np.median(seen[-5:])) > curve.start / 2


def _violation(
    story: Story, rank: int, grid: Grid, stack: Stack, within: Floats, cut_off: float, lasting: bool, known: int
) -> Violation:  # fmt: skip
    low = int(np.flatnonzero(within <= cut_off)[0])
    rates = story.rates(rank).finite()
    proof = (rates.evidence(0), rates.evidence(len(rates) - 1))
    top, bottom = stack.layers[0], stack.layers[-1]
    symptom = (
        f"gradients of {top} fell to 1/{1 / within[low]:.0f} against those of {bottom} in the first "
        f"{int(grid.steps[low])} updates, made with {float(rates.values[0]):.3g}, the highest rate of the run"
    )
    told = (
        "An adaptive optimizer makes its first updates as large as the rate allows, whatever the gradients are: its "
        "second moments are of a few of them. Before the first update the layers were in proportion."
    )
    return Violation(
        CONTRACT, "schedule", Severity.WARNING if lasting else Severity.INFO, symptom, 0, known, "",
        "optimizer", rank, proof,
        {"question": "Do gradients still reach the first layers?", "asked": "What did the first updates do?"},
        "warmup-missing", 0.65 if lasting else 0.45, _FOLLOW,
        (Because("Why did the first updates do that?", told, "", proof),),
        action="Raise the rate from near zero to its peak over the first 1 to 10 % of the updates.",
    )  # fmt: skip


RULE = WarmupEffect
