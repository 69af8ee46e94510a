"""C-LOSSSCALE-001: a loss scale is on the way in, off before the update, and only where it is needed.

Enters: the story: what the loss was multiplied by before backward (by a scaler, or by hand: what backward began from
against what the loss function gave), and whether that was still on the gradients when the optimizer used them. Leaves:
one result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Verdict, Violation
from brickprof.records import Event
from brickprof.rules import wording
from brickprof.rules.names import number
from brickprof.rules.story import Story

CONTRACT = "C-LOSSSCALE-001"
_FOLLOWS = frozenset({"nonfinite", "exploding", "diverged", "spike", "not-learning", "plateau"})
_ORDER = "scale(loss).backward(), unscale_(optimizer), clip, scaler.step(optimizer), scaler.update()"
_NARROW = ("float16", "bfloat16")


class LossScale:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "gradients as applied carry no loss scale"
        if not story.trained:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no training was observed")
        rank = story.ranks[0]
        violation = (
            _applied_scaled(story, rank, contract)
            or _by_hand(story, rank, contract)
            or _unscaled_twice(story, rank, contract)
        )
        if violation is not None:
            said = violation.symptom
            return ContractResult(CONTRACT, Verdict.FAIL, said, threshold, said, (violation,))
        scaled = _scaled_losses(story, rank)
        if not scaled:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no loss scale in this run")
        steps = [event for event in story.events("scaler", rank) if event.fields.get("op") == "step"]
        observed = f"{wording.count(len(steps), 'update')} through the scaler, scale {_scale(scaled[-1]):,.0f}"
        return ContractResult(CONTRACT, Verdict.PASS if steps else Verdict.NOT_EVALUATED, observed, threshold)


def _scale(event: Event) -> float:
    found = number(event.fields.get("scale"))
    return found if found is not None and math.isfinite(found) else 1.0


def _scaled_losses(story: Story, rank: int) -> list[Event]:
    events = story.events("loss", rank) if story.tells("loss", "scale", rank) else []
    return [event for event in events if _scale(event) > 1]


# -- a scaler's scale that is still on when the optimizer steps


def _applied_scaled(story: Story, rank: int, contract: Contract) -> Violation | None:
    used = [event for event in story.events("grad", rank) if event.fields.get("point") == "step" and _scale(event) > 1]
    steps = {event.step for event in story.events("scaler", rank) if event.fields.get("op") == "step"}
    bad = [event for event in used if event.step not in steps]
    losses = [event for event in _scaled_losses(story, rank) if event.step not in steps]
    updated = bool(losses) and any(not event.fields.get("skipped") for event in story.events("optimizer", rank))
    shown: Sequence[Event] = bad or (losses if updated and not steps else [])
    if len(shown) < contract.threshold("looks"):
        return None
    first, scale = shown[0], _scale(shown[0])
    symptom = (
        f"gradients were applied while they carried the loss scale of {scale:,.0f} "
        f"(in {wording.count(len(shown), 'looked-at step')}, first in step {first.step:,})"
    )
    why = "The loss was scaled before backward, and the update did not go through the scaler, which alone takes it off."
    return _violation(
        story, rank, symptom, shown, why, f"Replace optimizer.step() by scaler.step(optimizer); in all: {_ORDER}.", 0.95
    )


# -- a factor on the loss that nobody takes off


def _by_hand(story: Story, rank: int, contract: Contract) -> Violation | None:
    factors = _factors(story, rank)
    if len(factors) < contract.threshold("looks"):
        return None
    factor = median(found for found, _, _ in factors)
    steady = all(abs(found / factor - 1) < 0.01 for found, _, _ in factors[:8])
    power = abs(math.log2(factor) - round(math.log2(factor))) < 1e-3 if factor > 0 else False
    least = contract.threshold("least_factor")
    if not steady or factor < least or not (power or factor >= 100 * least) or _taken_off(story, rank, factor):
        return None
    _, loss, criterion = factors[0]
    given, begun = number(criterion.fields.get("value")) or 0.0, number(loss.fields.get("value")) or 0.0
    symptom = (
        f"the loss is multiplied by {factor:,.0f} before backward, and nothing divides the gradients again "
        f"(in {wording.count(len(factors), 'looked-at step')})"
    )
    narrow = _narrow(story, rank)
    needed = "" if narrow else " The run is in float32, where no scale is needed."
    why = f"The loss function gave {given:.4g}, and backward began from {begun:.4g}.{needed}"
    action = "Remove the factor" if not narrow else f"Use torch.amp.GradScaler: {_ORDER}"
    return _violation(story, rank, symptom, [loss, criterion], why, f"{action}.", 0.92)


def _factors(story: Story, rank: int) -> list[tuple[float, Event, Event]]:
    """What backward began from over what the loss function gave, in steps with one of each."""
    criteria: dict[int, list[Event]] = {}
    for event in story.events("criterion", rank):
        if event.fields.get("grad") is not False:
            criteria.setdefault(event.step, []).append(event)
    if not criteria:
        return []
    losses: dict[int, list[Event]] = {}
    for event in story.events("loss", rank):
        losses.setdefault(event.step, []).append(event)
    found = []
    for step, given in criteria.items():
        begun = losses.get(step, [])
        if len(begun) == len(given) == 1 and _scale(begun[0]) == 1.0:
            value, base = number(begun[0].fields.get("value")), number(given[0].fields.get("value"))
            if value is not None and base and math.isfinite(value) and math.isfinite(base):
                found.append((value / base, begun[0], given[0]))
    return found


def _taken_off(story: Story, rank: int, factor: float) -> bool:
    """Whether gradients are divided by about that factor before the update."""
    clips = story.events("clip", rank)
    if clips and all(
        (number(c.fields.get("norm")) or 0.0) > (number(c.fields.get("max_norm")) or math.inf) for c in clips
    ):
        return False  # what made them small is the clip, which leaves their direction only
    found = story.track("applied", "coefficient", rank).finite().values
    return bool(len(found)) and float(np.median(found)) * factor < 4


def _narrow(story: Story, rank: int) -> bool:
    tensors = any(tensor.dtype in _NARROW for tensor in story.names.tensors(rank))
    outputs = any(event.fields.get("dtype") in _NARROW for event in story.events("activation", rank))
    inputs = any(event.fields.get("dtype") in _NARROW for event in story.events("criterion", rank))
    return tensors or outputs or inputs


# -- taken off twice


def _unscaled_twice(story: Story, rank: int, contract: Contract) -> Violation | None:
    """Gradients that a scaler unscales and the script divides by the scale once more."""
    bad = []
    for event in story.events("applied", rank):
        coefficient, scale = number(event.fields.get("coefficient")), number(event.fields.get("scale"))
        if coefficient and scale and scale >= 64 and 0.5 < coefficient * scale < 2:
            bad.append(event)
    if len(bad) < contract.threshold("looks"):
        return None
    scale = number(bad[0].fields.get("scale")) or 1.0
    symptom = f"gradients are divided by the loss scale of {scale:,.0f} twice: updates are that much too small"
    why = "Between backward and update they shrank by the square of the scale."
    action = f"Unscale once: {_ORDER}; scaler.step unscales by itself what unscale_ has not."
    return _violation(story, rank, symptom, bad, why, action, 0.9)


def _violation(
    story: Story, rank: int, symptom: str, shown: Sequence[Event], why: str, action: str, certainty: float
) -> Violation:
    evidence = tuple(dict.fromkeys(event.id for event in (*shown[:2], shown[-1])))
    step = min(event.step for event in shown)
    return Violation(
        CONTRACT, "loss-scale", Severity.ERROR, symptom, step, step, "", "optimizer", rank, evidence,
        {"question": "What do the gradients carry?", "asked": "Why are the gradients that large?"},
        cause="loss-scale-misused", certainty=certainty, explains=_FOLLOWS, static=True, action=action,
        whys=(Because("Where does the factor come from?", why, "", evidence),),
        experiment="Run without the scale in float32 or bfloat16: the incident should be gone.",
    )  # fmt: skip


RULE = LossScale
