"""FALSIFY-ALBOR-002: the gradient norm that is applied stays small, and does not run away.

Enters: the story: gradient norms over steps, what clipping did, weights and losses to measure them against. Leaves: one
result; gradients that run away without (yet) ending in nan are the symptom ``exploding``. A norm alone says little: it
depends on the units of the loss. So it is measured by how far the loss would move if the weights moved by their own
size, |g| |w| / |loss|, which no change of units changes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation
from brickprof.rules import wording
from brickprof.rules.clipping import clip_bound
from brickprof.rules.handling import declared_bound, looks
from brickprof.rules.story import Story, Track

CONTRACT = "FALSIFY-ALBOR-002"
_EARLY = 64


class AppliedNorm:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        told = [look for rank in story.ranks[:1] for look in looks(story, rank)]
        norms = story.norms(story.ranks[0]).finite() if story.ranks else None
        limit = contract.threshold("max_norm")
        threshold = f"norm <= {limit:g} after clipping"
        if not told or norms is None or not len(norms):
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no gradient norm was seen")
        bound = clip_bound(told, declared_bound(story))
        limit = max(limit, bound or 0.0)
        violation = _exploding(story, norms, contract)
        if violation is not None:
            return ContractResult(CONTRACT, Verdict.FAIL, violation.symptom, threshold, violation.symptom, (violation,))
        used = [(look.after, look.step) for look in told if look.after is not None and (look.clips or bound)]
        if not used:
            observed = f"largest norm {float(norms.values.max()):.3g}"
            why = "nothing clips and no bound is declared, so no norm after clipping exists"
            return ContractResult(CONTRACT, Verdict.VACUOUS, observed, threshold, why)
        largest, step = max(used)
        observed = f"largest norm after clipping {largest:.3g} (step {step:,})"
        verdict = Verdict.FAIL if largest > limit * (1 + 1e-3) + 1e-3 else Verdict.PASS
        return ContractResult(CONTRACT, verdict, observed, threshold, f"the bound in force is {bound or limit:g}")


class Yardstick(NamedTuple):
    """What a gradient norm is measured against."""

    weights: float
    loss: float

    def reach(self, norm: float) -> float:
        """By how many of its own sizes the loss would move if the weights moved by theirs."""
        return norm * self.weights / self.loss if self.loss > 0 else 0.0


def yardstick(story: Story, rank: int) -> Yardstick | None:
    """The size of all weights at the first look, and of the losses at the beginning."""
    grid = story.grid("weight", rank)
    losses = story.losses(rank).finite().values[:_EARLY]
    if not len(grid) or not len(losses):
        return None
    weights, loss = float(np.sqrt(np.nansum(np.square(grid.l2[0])))), float(np.abs(losses).max())
    return Yardstick(weights, loss) if loss > 0 and 0 < weights < math.inf else None


def broke(story: Story, rank: int) -> bool:
    """Whether something stopped being finite: then C-TRAINSTABLE-001 has the word."""
    losses = story.track("loss", "value", rank).values
    named = any(event.fields.get("nonfinite") for kind in ("grad", "weight") for event in story.events(kind, rank))
    return named or bool(len(losses) and not np.isfinite(losses).all())


def _exploding(story: Story, norms: Track, contract: Contract) -> Violation | None:
    measure = yardstick(story, norms.rank)
    if measure is None or broke(story, norms.rank):
        return None
    return _from_the_start(norms, measure, contract) or _grown(norms, measure, contract)


def _from_the_start(norms: Track, measure: Yardstick, contract: Contract) -> Violation | None:
    first = norms.values[:3]
    reach = measure.reach(float(np.median(first)))
    if reach < contract.threshold("reach") or float(np.median(first)) < contract.threshold("least_norm"):
        return None
    symptom = (
        f"gradients are {float(np.median(first)):.2g} from the start: if the weights moved by their own size, the loss "
        f"would move by {reach:.1g} times its own"
    )
    return _symptom(norms, 0, 0, symptom, {"from_start": True, "reach": reach})


def _grown(norms: Track, measure: Yardstick, contract: Contract) -> Violation | None:
    """The last looks are far above the first ones, and stay there."""
    lasting = int(contract.threshold("lasting"))
    if len(norms) < 2 * lasting:
        return None
    usual = float(np.median(norms.values[: max(lasting, min(_EARLY, len(norms) // 2))]))
    limit = usual * contract.threshold("grown")
    late = norms.values[-lasting:]
    if usual <= 0 or late.min() < limit or measure.reach(float(late.min())) < math.sqrt(contract.threshold("reach")):
        return None
    place = int(np.flatnonzero(norms.values >= limit)[0])
    symptom = f"the gradient norm grew from {usual:.3g} to {float(late.max()):.3g} and stays there"
    return _symptom(norms, place, min(place + lasting - 1, len(norms) - 1), symptom, {"usual": usual})


def _symptom(norms: Track, first: int, detected: int, symptom: str, details: dict[str, object]) -> Violation:
    about = {"question": "Why do the gradients run away?", **details}
    steps = int(norms.steps[first]), int(norms.steps[detected])
    said = f"{symptom} (first seen in step {steps[0]:,}; {wording.count(len(norms), 'norm')} seen)"
    evidence = norms.evidences((first, detected))
    return Violation(
        CONTRACT, "exploding", Severity.WARNING, said, *steps, "", "step", norms.rank, evidence, about
    )  # fmt: skip


RULE = AppliedNorm
