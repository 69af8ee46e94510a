"""C-PRECISION-001: an update is large enough to change the weights it is meant for.

Enters: the story: how far weights that are kept in bfloat16 or float16 moved, and how far their optimizer meant to move
them. Leaves: one result. A weight in bfloat16 has 8 bits of mantissa: an update below a 512th of it rounds away, and
the training stands still although gradients flow.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Excluded, Severity, Verdict, Violation
from brickprof.rules import wording
from brickprof.rules.layers import spread
from brickprof.rules.names import Tensor
from brickprof.rules.story import Story

CONTRACT = "C-PRECISION-001"
_NARROW = {"bfloat16": 256, "float16": 2048}
"""What a weight is divided by to get the distance to its next number."""
_MOMENTUM = 10.0
"""By how much momentum can make an update larger than rate x gradient."""
_FOLLOWS = frozenset({"not-learning", "plateau", "underfitting", "slow-learning"})
_SPARSE = 0.2
"""Where more elements than these have no gradient, one that does not move proves nothing."""
_NORMALISED = ("adam", "lion", "rmsprop", "adagrad")


class Lost(NamedTuple):
    """One look: the share of narrow weights whose update is gone, and how large it should have been."""

    step: int
    share: float
    meant: float
    moved: float
    evidence: tuple[str, ...]
    rate: float = 0.0
    where: str = ""
    """The block in which most of these weights are."""


class Precision:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = "updates change the weights"
        rank = story.ranks[0] if story.ranks else 0
        narrow = {tensor.name: tensor for tensor in story.names.tensors(rank) if tensor.dtype in _NARROW}
        trained = {name: tensor for name, tensor in narrow.items() if story.names.trained(rank, tensor)}
        if not trained:
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no weights in bfloat16 or float16 train")
        looks = _looks(story, rank, trained)
        if not looks:
            why = "updates of these weights, or their learning rate, were not recorded"
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", threshold, why)
        bad = [look for look in looks if look.share >= contract.threshold("lost_share")]
        observed = f"{float(np.median([look.share for look in looks])):.0%} of the weights have updates that round away"
        most = len(bad) >= 0.6 * len(looks) or _from_then_on(looks, bad, story.steps(rank))
        if len(bad) < contract.threshold("looks") or not most:
            return ContractResult(CONTRACT, Verdict.PASS, observed, threshold)
        violation = _violation(bad, next(iter(trained.values())).dtype, rank)
        return ContractResult(CONTRACT, Verdict.FAIL, observed, threshold, violation.symptom, (violation,))


def _from_then_on(looks: list[Lost], bad: list[Lost], steps: int) -> bool:
    """Whether updates round away in every look from some step on, for most of the run, at a rate that is not spent."""
    high = [look for look in looks if look.rate >= 0.5 * max(each.rate for each in looks)]
    onset = len(high)
    while onset and high[onset - 1] in bad:
        onset -= 1
    since = high[onset:]
    return len(since) >= 3 and since[0].step <= 0.5 * since[-1].step and since[-1].step >= 0.5 * steps


def _looks(story: Story, rank: int, trained: dict[str, Tensor]) -> list[Lost]:
    grid, grads, rates = story.grid("update", rank), story.grid("grad", rank), story.rates(rank)
    if not len(rates):
        return []
    peak = float(np.nanmax(rates.values))
    normalised = _normalised(story, rank)
    found = []
    for look in spread(np.arange(len(grid)), 48):
        step = grid.steps[look]
        rate = rates.at(int(step))
        rows = np.flatnonzero(grads.steps == step)
        if rate is None or rate < 0.01 * peak or rate <= 0 or not len(rows):
            continue
        made = _look(story, int(look), int(step), rate, int(rows[0]), normalised, trained)
        if made is not None:
            found.append(made)
    return found


def _look(
    story: Story, look: int, step: int, rate: float, row: int, normalised: bool, trained: dict[str, Tensor]
) -> Lost | None:
    rank = story.ranks[0]
    grid, grads, weights = (story.grid(role, rank) for role in ("update", "grad", "weight"))
    at = np.flatnonzero(weights.steps == step)
    total = 0.0
    lost: Counter[str] = Counter()
    worst = (0.0, 0.0, 0.0, ())  # type: tuple[float, float, float, tuple[str, ...]]
    for place, name in enumerate(grid.tensors):
        tensor = trained.get(name) or trained.get(name.partition(".")[2])
        of, weight = grads.place(name), weights.place(name)
        if tensor is None or of is None or weight is None or not len(at):
            continue
        moved, numel, size = grid.rms[look, place], grid.numel[look, place], weights.rms[int(at[0]), weight]
        gradient = grads.unscaled_l2[row, of] / np.sqrt(max(numel, 1))
        if not np.isfinite(moved + gradient + size) or gradient <= 0:
            continue
        meant = float(rate if normalised else rate * gradient * _MOMENTUM)
        total += numel
        unmoved = _unmoved(grid.zero_fraction[look, place], grads.zero_fraction[row, of])
        if meant < size / (2 * _NARROW[tensor.dtype]) and moved < 0.6 * meant:
            unmoved = 1.0
        if unmoved:
            lost[tensor.brick.path] += numel * unmoved
            evidence = (grid.evidence(look, place), weights.evidence(int(at[0]), weight), grads.evidence(row, of))
            worst = max(worst, (float(numel), meant, float(moved), evidence))
    if not total:
        return None
    where = max(lost, key=lambda path: lost[path]) if lost else ""
    return Lost(step, sum(lost.values()) / total, worst[1], worst[2], worst[3], rate, where)


def _unmoved(still: float, without: float) -> float:
    """The share of a weight's elements that an update left as they were, although they have a gradient."""
    if not np.isfinite(still + without) or without > _SPARSE:
        return 0.0
    return max(0.0, float(still - without))


def _normalised(story: Story, rank: int) -> bool:
    """Whether updates are about as large as the rate, whatever the gradients."""
    classes = [str(event.fields.get("cls", "")).lower() for event in story.events("optimizer_created", rank)]
    return any(name in cls for cls in classes for name in _NORMALISED)


def _violation(bad: list[Lost], dtype: str, rank: int) -> Violation:
    first = bad[0]
    looks = wording.count(len(bad), "looked-at step")
    symptom = (
        f"updates of {first.share:.0%} of the weights round away although gradients flow: the weights are kept in "
        f"{dtype} (in {looks}" + (f"; most of them are in {first.where})" if first.where else ")")
    )
    why = (
        f"Updates of up to {first.meant:.2g} per weight were meant, {first.moved:.2g} was made. Next to a weight w, "
        f"{dtype} has no number closer than about w/{_NARROW[dtype]}; less than half of that rounds to nothing."
    )
    return Violation(
        CONTRACT, "no-update", Severity.WARNING, symptom, first.step, bad[min(2, len(bad) - 1)].step,
        first.where, "optimizer", rank, first.evidence,
        {"question": "Why do the weights not move?", "asked": "Why does training stand still?"},
        cause="bf16-precision-loss", certainty=0.9, explains=_FOLLOWS, static=True,
        whys=(Because("Where do the updates go?", why, "", first.evidence),),
        excluded=(Excluded("no-gradient-path", "the gradients of these weights are not zero", first.evidence),),
        action="Keep the weights in float32 and compute in bfloat16 (torch.autocast), or round stochastically.",
        experiment="Run with model.float() and torch.autocast(dtype=torch.bfloat16): the weights should move.",
    )  # fmt: skip


RULE = Precision
