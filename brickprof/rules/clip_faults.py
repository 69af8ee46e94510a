"""The ways in which clipping goes wrong, told from what it left behind.

Enters: the looked-at steps of a run and the bound that should hold. Leaves: the first ``Fault`` that the evidence
shows, or None. Faults that change the numbers in a recognisable way are told here: scaled, per block, squared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because
from brickprof.records import Event
from brickprof.rules import wording
from brickprof.rules.handling import Look, bound_of, clip_norm
from brickprof.rules.names import number
from brickprof.rules.story import Story

NOT_APPLIED, WRONG = "grad-clip-not-applied", "grad-clip-wrong"
RIGHT = "Call clip_grad_norm_(model.parameters(), {bound:g}) after backward (and unscale_) and before optimizer.step()."
_MOST_LOOKS = 64
_MOST_FOR_A_LAW = 500
_LEAST_SPREAD = 0.03
_SLOW = frozenset({"not-learning", "plateau"})
RUNAWAY = frozenset({"nonfinite", "exploding", "diverged", "spike"})


class Fault(NamedTuple):
    kind: str
    """never, late, nothing, empty, elsewhere, sometimes, partial, scaled, per-block, power."""
    cause: str
    symptom: str
    looks: tuple[Look, ...]
    bound: float
    whys: tuple[Because, ...] = ()
    action: str = ""
    asked: str = "Why did nothing hold them?"
    experiment: str = ""
    brick: str = ""
    certainty: float = 0.9
    explains: frozenset[str] = RUNAWAY
    evidence: tuple[str, ...] = ()
    shallowest: bool = False
    """Of partial clipping: whether what was left out lies at the model's input end."""


def scaled_or_apart(story: Story, told: Sequence[Look], contract: Contract) -> Fault | None:
    """Clipping that reaches every parameter, and measures the wrong thing."""
    return _scaled(told, contract) or _per_block(story, told, contract)


# -- clipped while the loss scale was still on


def _scaled(told: Sequence[Look], contract: Contract) -> Fault | None:
    bad = [look for look in told if look.grads and _still_scaled(look)]
    if len(bad) < contract.threshold("looks"):
        return None
    first, bound = bad[0], bound_in(bad[0]) or 1.0
    scale = number(next(e.fields.get("scale") for e in first.grads if e.fields.get("point") == "clip")) or 1.0
    norm = next((found for clip in first.clips if (found := clip_norm(clip)) is not None), None)
    shown = f"a norm of {norm:.3g}" if norm is not None else "the norm"
    symptom = (
        f"gradients are clipped to {bound:g} while they still carry the loss scale of {scale:,.0f} "
        f"(in {wording.count(len(bad), 'looked-at step')}, first in step {first.step:,})"
    )
    why = f"Clipping saw {shown}, {scale:,.0f} times the real one, so that it cuts to {bound / scale:.2g} in truth"
    return Fault(
        "scaled", WRONG, symptom, tuple(bad), bound,
        (Because("What does clipping measure then?", wording.sentence(why), "", first.evidence),),
        "Call scaler.unscale_(optimizer) before clip_grad_norm_.", "Why is it cut that much?", certainty=0.95,
        explains=_SLOW,
    )  # fmt: skip


def _still_scaled(look: Look) -> bool:
    if not look.grads or not look.clips:
        return False
    marked = [e for e in look.grads if e.fields.get("point") == "clip" and (number(e.fields.get("scale")) or 1.0) > 1.0]
    return bool(marked)


def bound_in(look: Look) -> float | None:
    return next((bound for bound in look.bounds if bound is not None), None)


# -- every block clipped by itself


def _per_block(story: Story, told: Sequence[Look], contract: Contract) -> Fault | None:
    several = [look for look in told if len(look.clips) >= 3 and _separate_clips(look)]
    optimizers = max(1, story.names.optimizers(told[0].rank))
    bad = [look for look in several if len(look.clips) > max(2, optimizers) and _distorting(look.clips)]
    if len(bad) >= contract.threshold("looks"):
        look = bad[0]
        bound = bound_in(look) or 1.0
        lowest, highest = _coefficients(look.clips)
        text = (
            f"{len(look.clips):,} clips in step {look.step:,} each with its own norm: "
            f"coefficients from {lowest:.2g} to {highest:.2g}"
        )
        return _distorted(bad, bound, text, tuple(clip.id for clip in look.clips[:4]), "")
    return _equal_blocks(story, told, contract)


def _separate_clips(look: Look) -> bool:
    return len(look.clips) >= 3 and len(set(look.bounds)) == 1 and None not in look.bounds


def _coefficients(clips: Sequence[Event]) -> tuple[float, float]:
    found = [
        min(1.0, bound / norm) for clip in clips if (norm := clip_norm(clip)) and (bound := bound_of(clip)) is not None
    ]
    return (min(found), max(found)) if found else (1.0, 1.0)


def _distorting(clips: Sequence[Event]) -> bool:
    lowest, highest = _coefficients(clips)
    return highest > 1.2 * lowest


def _equal_blocks(story: Story, told: Sequence[Look], contract: Contract) -> Fault | None:
    """Clipping by hand: blocks whose coefficients differ end up with one and the same norm."""
    bad, shown = [], ""
    for look in [look for look in told if look.applied is not None and not look.clips][:_MOST_LOOKS]:
        blocks = block_coefficients(story, look)
        cut = [(brick, found) for brick, found in blocks if 0 < found < 0.99]
        if look.clips or len(cut) < 3 or max(f for _, f in cut) < 1.2 * min(f for _, f in cut):
            continue
        norms = _norms_after(story, look)
        if _agreeing(norms) >= 3:
            bad.append(look)
            shown = shown or f"coefficients of {len(blocks):,} blocks from {min(f for _, f in cut):.2g} to " + (
                f"{max(f for _, f in blocks):.2g} in step {look.step:,}, and one norm for all afterwards"
            )
    if len(bad) < contract.threshold("looks"):
        return None
    evidence = (bad[0].applied.id,) if bad[0].applied is not None else ()
    return _distorted(bad, median(_norms_after(story, bad[0])), shown, evidence, "")


def block_coefficients(story: Story, look: Look) -> list[tuple[str, float]]:
    listed = look.applied.fields.get("blocks") if look.applied is not None else None
    pairs = [pair for pair in listed if isinstance(pair, list) and len(pair) == 2] if isinstance(listed, list) else []
    known = [(story.names.brick(look.rank, pair[0]), number(pair[1])) for pair in pairs]
    return [
        (brick.path, found)
        for brick, found in known
        if brick is not None and found is not None and math.isfinite(found)
    ]


def _norms_after(story: Story, look: Look) -> list[float]:
    """The norm of each block as the optimizer saw it; samples are taken there when nobody calls torch's clipping."""
    grid = story.grid("grad", look.rank)
    rows = np.flatnonzero(grid.steps == look.step)
    if not len(rows):
        return []
    sums: dict[str, float] = {}
    for place, l2 in enumerate(grid.unscaled_l2[rows[0]]):
        if np.isfinite(l2):
            path = grid.bricks[place].path
            sums[path] = sums.get(path, 0.0) + float(l2) ** 2
    return sorted(math.sqrt(total) for total in sums.values() if total > 0)


def _agreeing(norms: list[float]) -> int:
    """How many blocks share one norm to a thousandth."""
    return max((sum(1 for other in norms if abs(other - norm) <= 1e-3 * norm) for norm in norms), default=0)


def _distorted(bad: Sequence[Look], bound: float, text: str, evidence: tuple[str, ...], brick: str) -> Fault:
    symptom = (
        f"gradients are clipped block by block, not as a whole "
        f"(in {wording.count(len(bad), 'looked-at step')}, first in step {bad[0].step:,})"
    )
    return Fault(
        "per-block", WRONG, symptom, tuple(bad), bound,
        (Because("What does that do to the direction?", wording.sentence(text), brick, evidence),),
        f"Clip once, over all parameters: {RIGHT.format(bound=bound)}",
        "Why are the gradients out of proportion?", certainty=0.9, explains=_SLOW, evidence=evidence, brick=brick,
    )  # fmt: skip


# -- divided by a power of the norm


def power_law(told: Sequence[Look], bound: float | None, contract: Contract) -> Fault | None:
    """A coefficient of bound / norm^k: the norm afterwards falls as the norm before rises."""
    by_hand = [look for look in told if look.applied is not None and not look.clips]
    by_hand = by_hand[:: 1 + len(by_hand) // _MOST_FOR_A_LAW]
    cut = [look for look in by_hand if look.before and look.after and (look.coefficient or 1.0) < 0.99]
    if len(cut) < contract.threshold("looks_for_a_law"):
        return None
    before = np.log([look.before or 1.0 for look in cut])
    after = np.log([look.after or 1.0 for look in cut])
    spread = float(np.std(before))
    laws = {power: after + (power - 1) * before for power in (2, 3, 4)}
    power = min(laws, key=lambda each: float(np.std(laws[each])))
    left = laws[power]
    # The law is exact, so what is left is rounding; a norm that hardly changes tells no law from another.
    if spread < _LEAST_SPREAD or float(np.std(left)) > 0.1 * spread:
        return None
    limit = bound if bound is not None else float(np.exp(np.median(left)))
    worst = max(cut, key=lambda look: look.before or 0.0)
    symptom = (
        f"clipping divides by the norm to the power of {power}: a norm of {worst.before:.3g} became "
        f"{worst.after:.3g} in step {worst.step:,}"
    )
    why = (
        f"Over {wording.count(len(cut), 'looked-at step')}, norm after x norm before^{power - 1} is "
        f"{float(np.exp(np.median(left))):.3g} each time"
    )
    evidence = tuple(look.applied.id for look in (cut[0], worst) if look.applied is not None)
    return Fault(
        "power", WRONG, symptom, tuple(cut), limit,
        (Because("Which law does the coefficient follow?", wording.sentence(why), "", evidence),),
        f"The coefficient is bound / norm, with norm = sqrt(sum of squares). {RIGHT.format(bound=limit)}",
        "Why are updates that small?", certainty=0.93, explains=_SLOW, evidence=evidence,
    )  # fmt: skip
