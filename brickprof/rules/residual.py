"""C-RESIDUAL-001: gradients reach every layer of a stack, neither dying out nor growing on the way.

Enters: the story: gradients of like matrices, layer by layer. Leaves: one result; a steady decay towards the input is
``vanishing-gradients``, or ``residual-path-broken`` where the layers are blocks of several matrices (those train only
because a skip leads around them); a steady growth towards the input is ``exploding-gradients``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Excluded, Severity, Verdict, Violation
from brickprof.rules import wording
from brickprof.rules.layers import Stack, spread, stacks, steadiness
from brickprof.rules.story import Grid, Story

CONTRACT = "C-RESIDUAL-001"
Floats = npt.NDArray[np.float64]
_STALLED = frozenset({"not-learning", "plateau", "no-gradient"})
_RUNAWAY = frozenset({"nonfinite", "exploding", "diverged", "spike"})


class Profile(NamedTuple):
    """Gradients over one stack: the middle of several looks."""

    stack: Stack
    sizes: Floats
    looks: tuple[int, ...]
    grid: Grid

    @property
    def known(self) -> Floats:
        return self.sizes[np.isfinite(self.sizes)]

    @property
    def steady(self) -> float:
        """1: gradients are the larger the nearer the loss; -1: the nearer the input."""
        return steadiness(self.sizes)

    @property
    def factor(self) -> float:
        return float(self.known.max() / max(float(self.known.min()), 1e-45))

    @property
    def per_layer(self) -> float:
        return float(self.factor ** (1 / max(1, len(self.known) - 1)))

    @property
    def ends(self) -> tuple[int, int]:
        """The layers with the smallest and the largest gradient."""
        return int(np.nanargmin(self.sizes)), int(np.nanargmax(self.sizes))

    def evidence(self) -> tuple[str, ...]:
        look = self.looks[-1]
        return tuple(self.grid.evidence(look, self.stack.places[end][0]) for end in self.ends)


class Residual:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = f"largest / smallest layer < {contract.threshold('across'):,.0f}"
        if not story.trained:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no training was observed")
        found = profiles(story, story.ranks[0], contract)
        if not found:
            why = "no stack of four like layers whose gradients were sampled"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", threshold, why)
        worst = max(found, key=lambda each: each.factor)
        observed = f"largest / smallest layer {worst.factor:.3g} over {len(worst.known):,} layers"
        violation = next((made for each in found if (made := _violation(each, story, contract)) is not None), None)
        if violation is None:
            return ContractResult(CONTRACT, Verdict.PASS, observed, threshold)
        return ContractResult(CONTRACT, Verdict.FAIL, observed, threshold, violation.symptom, (violation,))


def profiles(story: Story, rank: int, contract: Contract) -> list[Profile]:
    """The gradients of each stack over the looks after the first updates, or over all where there are few."""
    grid = story.grid("grad", rank)
    if not len(grid):
        return []
    # After a run broke there is nothing to compare.
    whole = np.count_nonzero(np.isfinite(grid.l2), axis=1) > 0.5 * len(grid.tensors)
    settled = np.flatnonzero(whole & (grid.steps >= contract.threshold("updates_before")))
    chosen = settled if len(settled) >= contract.threshold("looks") else np.flatnonzero(whole)
    if not len(chosen):
        return []
    looks = tuple(int(look) for look in spread(chosen, 32))
    made = []
    for stack in stacks(story, grid):
        table = np.stack([stack.sizes(grid, look) for look in looks])
        with np.errstate(all="ignore"):
            middle = _middle(table)
        if np.isfinite(middle).sum() >= 4 and np.nanmax(middle) > 0:
            made.append(Profile(stack, middle, looks, grid))
    return made


def _middle(table: Floats) -> Floats:
    """The median of each layer over its finite looks."""
    rows = [column[np.isfinite(column)] for column in table.T]
    return np.asarray([float(np.median(row)) if len(row) else np.nan for row in rows])


def _violation(profile: Profile, story: Story, contract: Contract) -> Violation | None:
    growing = profile.steady <= -contract.threshold("steady")
    limit = contract.threshold("across" if growing or not profile.stack.composite else "across_blocks")
    enough = len(profile.looks) >= contract.threshold("looks") or (growing and profile.factor >= limit**2)
    if abs(profile.steady) < contract.threshold("steady") or profile.factor < limit or not enough:
        return None
    if profile.per_layer < contract.threshold("per_layer"):
        return None
    return _growing(profile) if growing else _dying(profile, story)


def _told(profile: Profile) -> str:
    low, high = profile.ends
    return (
        f"from {profile.sizes[high]:.2g} ({profile.stack.layers[high]}) to {profile.sizes[low]:.2g} "
        f"({profile.stack.layers[low]}), {profile.per_layer:.2g}x per layer over {len(profile.known):,} layers"
    )


def _dying(profile: Profile, story: Story) -> Violation:
    composite = profile.stack.composite
    low = profile.stack.layers[profile.ends[0]]
    symptom = f"gradients die out towards the input: {_told(profile)}"
    step = int(profile.grid.steps[profile.looks[0]])
    seen = int(profile.grid.steps[profile.looks[min(2, len(profile.looks) - 1)]])
    evidence = profile.evidence()
    if composite:
        why = (
            "A block of several matrices passes gradients on through a skip, one to one. These shrink by a factor in "
            "each block, so the skip carries none: it is missing, detached, or led through the block's norm."
        )
        action = f"In the forward of {low} and its like add the input itself: x = x + f(norm(x)), without detach."
    else:
        why = "Each layer multiplies the gradient by its weights and the slope of its activation; nothing leads around."
        action = "Use ReLU or GELU with a fitting initialisation, normalise between layers, or add skips around them."
    return Violation(
        CONTRACT, "gradient-decay", Severity.WARNING, symptom, step, seen, low, "block", profile.grid.rank, evidence,
        {"question": "Why do the early layers hardly learn?", "asked": "Why does so little reach the early layers?"},
        cause="residual-path-broken" if composite else "vanishing-gradients",
        certainty=0.85 if composite else 0.9, explains=_STALLED,
        whys=(Because("Why do they shrink?", why, low, evidence),), action=action, static=True,
        excluded=(Excluded("learning-rate-too-low", "gradients differ by layer, the rate does not", evidence),),
        experiment="Print the gradient of each layer's output: with an intact skip it hardly changes.",
    )  # fmt: skip


def _growing(profile: Profile) -> Violation:
    high = profile.stack.layers[profile.ends[1]]
    step = int(profile.grid.steps[profile.looks[0]])
    evidence = profile.evidence()
    low_size, high_size = (profile.sizes[end] for end in profile.ends)
    symptom = (
        f"gradients grow {profile.per_layer:.2g}x per layer towards the input: from {low_size:.2g} "
        f"({profile.stack.layers[profile.ends[0]]}) to {high_size:.2g} ({high})"
    )
    why = (
        f"Each of {wording.count(len(profile.known), 'layer')} multiplies gradients by about {profile.per_layer:.2g}: "
        "the scale of its weights or of its residual branch is too large for this depth."
    )
    return Violation(
        CONTRACT, "gradient-growth", Severity.WARNING, symptom, step, step, high, "block", profile.grid.rank, evidence,
        {"question": "Why are the gradients of the early layers that large?", "asked": "Why did they get that large?"},
        cause="exploding-gradients", certainty=0.85, explains=_RUNAWAY,
        whys=(Because("Why do they grow?", why, high, evidence),), static=True,
        action="Scale down the initialisation or residual branches (by 1/sqrt(2 layers)), normalise, clip the norm.",
        experiment="Run with clip_grad_norm_(model.parameters(), 1.0): the norm before clipping shows the growth.",
    )  # fmt: skip


RULE = Residual
