"""Gradients that clipping did not reach: left out, clipped too late, or never.

Enters: the looked-at steps of a run and the bound that should hold. Leaves: the first ``Fault`` that is shown.
Clipping that measures the wrong thing comes first (``clip_faults``); a norm above the bound that nothing there explains
means that clipping did not reach the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because
from brickprof.records import Event
from brickprof.rules import wording
from brickprof.rules.clip_faults import (
    NOT_APPLIED,
    RIGHT,
    RUNAWAY,
    WRONG,
    Fault,
    block_coefficients,
    bound_in,
    power_law,
    scaled_or_apart,
)  # fmt: skip
from brickprof.rules.handling import Declared, Look, late, size
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story


def find(
    story: Story, told: Sequence[Look], bound: float | None, declared: Declared | None, contract: Contract
) -> Fault | None:
    return (
        scaled_or_apart(story, told, contract)
        or partial(story, told, bound, contract)
        or power_law(told, bound, contract)
        or _unbounded(story, told, bound, declared, contract)
    )


# -- some parameters are left out


def partial(story: Story, told: Sequence[Look], bound: float | None, contract: Contract) -> Fault | None:
    """Clipping that leaves out parameters which then are above the bound by themselves."""
    if bound is None or not told or story.names.optimizers(told[0].rank) > 1:
        return None
    clipped = [look for look in told if look.clips and not look.too_late]
    measured = [look for look in clipped if look.grads or look.applieds]
    rests = [(look, *rest) for look in measured if (rest := _rest(story, look)) is not None]
    bad = [found for found in rests if found[1] > contract.threshold("over") * bound]
    if not bad or len(bad) < 0.2 * len(rests):
        return None
    if len(bad) < contract.threshold("looks") and max(found[1] for found in bad) < 100 * bound:
        return None  # a run may break right after its first update: then one look has to be beyond doubt
    look, norm, brick, evidence = max(bad, key=lambda found: found[1])
    covered = sum(whole(clip.fields.get("tensors")) for clip in look.clips)
    told_of = f"{wording.count(covered, 'parameter')} are clipped to {bound:g}, and {brick or 'the rest'} is not: "
    symptom = told_of + f"its gradient is {norm:.3g} in step {look.step:,}"
    return Fault(
        "partial", WRONG, symptom, tuple(found[0] for found in bad), bound,
        (Because("Which gradients were left out?",
                 f"Those of {brick or 'the parameters that clipping was not given'}: {norm:.3g} where {bound:g} is the "
                 f"bound, in {len(bad):,} of {wording.count(len(clipped), 'looked-at step')}.", brick, evidence),),
        f"Give clipping every parameter. {RIGHT.format(bound=bound)}", brick=brick, certainty=0.88,
        explains=RUNAWAY | {"gradient-growth"}, evidence=evidence, shallowest=_shallowest(story, look.rank, brick),
    )  # fmt: skip


def _rest(story: Story, look: Look) -> tuple[float, str, tuple[str, ...]] | None:
    """The norm, brick and evidence of what clipping did not touch."""
    seen_at_clip = bool(look.grads) and any(event.fields.get("point") == "clip" for event in look.grads)
    for event in look.grads:
        norm = size(event)
        if seen_at_clip and event.fields.get("point") == "step" and norm is not None:
            brick = story.names.show(story.names.tensor(look.rank, event.fields.get("at")).brick)
            return norm, brick, (event.id, *(clip.id for clip in look.clips[:1]))
    return _untouched(story, look)


def _untouched(story: Story, look: Look) -> tuple[float, str, tuple[str, ...]] | None:
    """Blocks that kept their gradients while others were cut, from what the update used."""
    if look.applied is None:
        return None
    blocks, after, bound = block_coefficients(story, look), look.after, bound_in(look)
    kept = [brick for brick, found in blocks if found >= 0.999]
    if not kept or after is None or bound is None or len(kept) == len(blocks):
        return None
    if min(found for _, found in blocks) > 0.95:
        return None
    rest = math.sqrt(max(after * after - bound * bound, 0.0))
    norms = {brick: _block_norm(story, look, brick) for brick in kept}
    brick = max(norms, key=lambda each: norms[each])
    return rest, str(brick), (look.applied.id, *(clip.id for clip in look.clips[:1]))


def _block_norm(story: Story, look: Look, brick: str) -> float:
    grid = story.grid("grad", look.rank)
    rows = np.flatnonzero(grid.steps == look.step)
    if not len(rows):
        return 0.0
    inside = [
        float(l2) for place, l2 in enumerate(grid.unscaled_l2[rows[0]])
        if np.isfinite(l2) and f"{grid.bricks[place].path}.".startswith(f"{brick}.")
    ]  # fmt: skip
    return math.sqrt(sum(l2 * l2 for l2 in inside))


def _shallowest(story: Story, rank: int, brick: str) -> bool:
    """Whether ``brick`` is the first block of the forward pass."""
    bricks = {tensor.brick for tensor in story.names.tensors(rank) if tensor.trainable}
    known = [(deep, story.names.show(each)) for each in bricks if (deep := story.depth.of(each)) is not None]
    if not known:
        return False
    first = min(known)[1]
    return f"{first}.".startswith(f"{brick}.") or f"{brick}.".startswith(f"{first}.")


# -- the bound does not hold, and nothing above says why


def _unbounded(
    story: Story, told: Sequence[Look], bound: float | None, declared: Declared | None, contract: Contract
) -> Fault | None:
    several = story.names.optimizers(told[0].rank) > 1
    if bound is None or (several and declared is None and not _on_nothing([c for look in told for c in look.clips])):
        return None  # of two optimizers one may be clipped on purpose
    by_value = any(None in look.bounds for look in told)
    over = [look for look in told if look.after is not None and look.after > contract.threshold("over") * bound]
    if by_value or not over or (len(over) < contract.threshold("looks") and max(map(_after, over)) < 10 * bound):
        return None
    measured = [look for look in told if look.after and not look.broken]
    ran = [look for look in told if look.clips]
    kind = "never" if not ran else _how(over, ran)
    if kind == "" or (kind != "never" and len(over) < 0.1 * len(measured)):
        return None
    return _told(kind, story, over, told, bound, declared)


def _after(look: Look) -> float:
    return look.after or 0.0


def _on_nothing(clips: Sequence[Event]) -> bool:
    return bool(clips) and all(whole(clip.fields.get("tensors"), 1) == 0 for clip in clips)


def _how(over: Sequence[Look], ran: Sequence[Look]) -> str:
    clips = [clip for look in over for clip in look.clips]
    if not clips:
        return "sometimes"
    if all(late(clip, look.update) for look in over for clip in look.clips):
        return "late"
    if _on_nothing(clips):
        return "nothing"
    if all(number(clip.fields.get("norm")) == 0.0 or whole(clip.fields.get("tensors"), 1) == 0 for clip in clips):
        return "empty"
    untouched = [look for look in over if look.clips and 0.99 <= (look.coefficient or 0.0) <= 1.01]
    return "elsewhere" if len(untouched) >= 0.5 * len(over) else ""


_REASONS = {
    "never": "no clipping ran between backward and update in {looked}",
    "sometimes": "clipping ran in other steps, and in none of these",
    "late": "clipping ran after the update, in each of them",
    "nothing": "clipping ran, and was given no tensor at all (an iterator that somebody had used up gives none)",
    "empty": "clipping ran on gradients that were not there yet: it measured 0",
    "elsewhere": "clipping ran, and the gradients that the optimizer used are what backward left",
}

_CERTAINTY = {"nothing": 0.93, "empty": 0.9}


def _told(
    kind: str, story: Story, over: Sequence[Look], told: Sequence[Look], bound: float, declared: Declared | None
) -> Fault:
    worst = max(over, key=_after)
    source = f"the bound is {bound:g}"
    if declared is not None:
        source = f"a bound of {declared.value:g} is declared ({declared.key})"
    reason = _REASONS[kind].format(looked=wording.count(len(told), "looked-at update"))
    symptom = f"{source}, and gradients of norm {_after(worst):.3g} were applied in step {worst.step:,}: {reason}"
    evidence = tuple(dict.fromkeys(identity for look in (over[0], worst) for identity in look.evidence))
    shown = evidence or tuple(look.update.id for look in over[:2] if look.update is not None)
    at = next((event.fields.get("at") for event in worst.grads if event.fields.get("at") is not None), None)
    brick = story.names.show(story.names.tensor(worst.rank, at).brick) if at is not None else ""
    spoken = f"{wording.sentence(reason)} {len(over):,} of {wording.count(len(told), 'update')} were above {bound:g}."
    spoken_evidence = tuple(look.update.id for look in over[:2] if look.update is not None) or shown
    whys = [Because("Why did the bound not hold?", spoken, brick, spoken_evidence)]
    if declared is not None:
        said = f"The configuration says {declared.key}: {declared.value:g}; nothing in the run uses it."
        if kind == "never":
            whys.append(Because("Was a bound wanted?", said, "", (declared.evidence,)))
    action = RIGHT.format(bound=bound)
    if kind == "nothing":
        action = f"Call model.parameters() anew for every clip, or keep a list of it: a generator ends once. {action}"
    return Fault(
        kind, NOT_APPLIED, symptom, tuple(over), bound, tuple(whys), action, brick=brick,
        certainty=_CERTAINTY.get(kind, 0.85), evidence=shown,
        experiment="Run again with that one line; the norm before clipping then shows the growth without damage.",
    )  # fmt: skip
