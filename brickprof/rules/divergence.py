"""C-STEPSIZE-001: updates are small against the weights they change.

Enters: the story: how large the first updates were, what the loss did right after them, and where it is at the end.
Leaves: one result. Updates of the size of the weights, a loss that jumps to a multiple of its start in ten steps and
never gets far below it again: the learning rate is too high. A loss that recovers is nobody's business, and gradients
that were out of proportion before the first update are the model's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Excluded, Severity, Verdict, Violation
from brickprof.rules import curves
from brickprof.rules.norms import Yardstick, yardstick
from brickprof.rules.story import Story, Track

CONTRACT = "C-STEPSIZE-001"
_FOLLOWS = frozenset({"nonfinite", "exploding", "diverged", "spike", "not-learning", "plateau", "dead-units",
                      "saturated-units"})  # fmt: skip
_SOON = 10
_EARLY = 16
_ABOVE = 1.1
_ORDINARY_REACH = 300.0
_KNOWN_KINDS = ("sgd", "adam", "rmsprop", "lion")
"""Others (Adadelta, L-BFGS, methods that find their own step) have rates of 1."""
_FAR_OUT, _REWRITTEN, _ROSE = 10.0, 0.5, 1.2
"""A rate out of all use, an update that rewrites the weights, and a loss that rose: three that together prove it."""
_ORDINARY = {"sgd": 0.3, "": 0.01}
"""Learning rates that are in common use, by kind of optimizer."""


class Moves(NamedTuple):
    """The size of whole updates against the whole weights, a number for each look."""

    steps: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    evidence: tuple[str, ...]


class StepSize:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        threshold = f"update / weights < {contract.threshold('share'):g} where the loss rises"
        rank = story.ranks[0] if story.ranks else 0
        moves, losses = moved(story, rank), story.losses(rank).finite()
        if not len(losses):
            return ContractResult(CONTRACT, Verdict.VACUOUS, "", threshold, "no loss was seen")
        if moves is None:
            return ContractResult(CONTRACT, Verdict.NOT_EVALUATED, "", threshold, "no update was measured")
        observed = f"first update {moves.shares[0]:.2g} of the weights, median {float(np.median(moves.shares)):.2g}"
        violation = _too_large(story, rank, moves, losses, contract) or _restless(story, rank, moves, losses, contract)
        if violation is None:
            return ContractResult(CONTRACT, Verdict.PASS, observed, threshold)
        return ContractResult(CONTRACT, Verdict.FAIL, observed, threshold, violation.symptom, (violation,))


def moved(story: Story, rank: int) -> Moves | None:
    grid = story.grid("update", rank)
    if not len(grid):
        return None
    with np.errstate(all="ignore"):
        sizes = np.where(grid.ratio > 0, grid.l2 / grid.ratio, np.nan)
        updates = np.where(np.isfinite(sizes), grid.l2, np.nan)
        shares = np.sqrt(np.nansum(np.square(updates), axis=1) / np.nansum(np.square(sizes), axis=1))
    known = np.flatnonzero(np.isfinite(shares))
    if not len(known):
        return None
    first = int(known[0])
    largest = int(np.nanargmax(np.where(np.isfinite(grid.l2[first]), grid.l2[first], -1.0)))
    return Moves(grid.steps[known], shares[known], (grid.evidence(first, largest),))


def _out_of_use(story: Story, rank: int) -> float:
    """How many times the largest rate in common use the rate of the first update is; 0 where that is not known."""
    rates, created = story.rates(rank).finite(), story.first("optimizer_created", rank)
    cls = str(created.fields.get("cls", "")) if created is not None else ""
    if not len(rates) or not any(kind in cls.lower() for kind in _KNOWN_KINDS):
        return 0.0
    return float(rates.values[0]) / _ORDINARY["sgd" if cls.lower() == "sgd" else ""]


def ordinary_rate(story: Story, rank: int) -> str:
    """How the learning rate compares with those in use: "0.1 is ordinary for SGD", or nothing."""
    rates = story.rates(rank).finite()
    created = story.first("optimizer_created", rank)
    cls = str(created.fields.get("cls", "")) if created is not None else ""
    limit = _ORDINARY["sgd" if cls.lower() == "sgd" else ""]
    if not len(rates) or not cls or float(rates.values[0]) > limit:
        return ""
    return f"a rate of {float(rates.values[0]):.3g} is ordinary for {cls}"


def out_of_proportion(story: Story, rank: int, reach: float) -> bool:
    """Whether gradients before the first update would move the loss by ``reach`` of its own sizes."""
    norms, measure = story.norms(rank).finite(), yardstick(story, rank)
    return bool(len(norms)) and measure is not None and measure.reach(float(norms.values[0])) >= reach


def _too_large(story: Story, rank: int, moves: Moves, losses: Track, contract: Contract) -> Violation | None:
    start = float(losses.values[0])
    if story.names.optimizers(rank) > 1 or start <= 0 or len(losses) < 2 or moves.steps[0] > _SOON:
        return None
    soon = losses.values[: _SOON + 1]
    far = _out_of_use(story, rank) >= _FAR_OUT and float(moves.shares[0]) >= _REWRITTEN
    rise = _ROSE if far else contract.threshold("rise")
    place, rose = int(np.argmax(soon)), int(np.argmax(soon >= rise * start))
    end = float(np.median(losses.values[-max(3, len(losses) // 4) :]))
    # What came after the loss had risen did not raise it.
    early = moves.shares[moves.steps < losses.steps[rose]]
    if not rose or not len(early) or early.max() < contract.threshold("share"):
        return None
    if end < contract.threshold("settled") * start:
        return None
    ordinary = ordinary_rate(story, rank)
    if out_of_proportion(story, rank, _ORDINARY_REACH if ordinary else 1e4):
        return None
    # Two losses prove nothing, unless they are worlds apart, or the rate is out of all use and rewrote the weights.
    apart = far or float(soon[1]) >= contract.threshold("leap") * start
    proven = apart and _in_proportion(story, rank, start)
    if len(losses) < 3 and not proven:
        return None
    known = int(losses.steps[rose if proven else max(rose, 2)])
    return _violation(story, rank, moves, losses, (place, known), end)


def _in_proportion(story: Story, rank: int, loss: float) -> bool:
    """Whether the gradients of the first step are known to be ordinary against the first ``loss``."""
    norms, measure = story.norms(rank).finite(), yardstick(story, rank)
    if measure is None or not len(norms):
        return False
    return Yardstick(measure.weights, loss).reach(float(norms.values[0])) < _ORDINARY_REACH


def _restless(story: Story, rank: int, moves: Moves, losses: Track, contract: Contract) -> Violation | None:
    """Every early update replaces a good part of the weights, and meanwhile nothing is learnt."""
    curve = curves.curve(story, rank)
    early = moves.shares[(moves.steps >= 1) & (moves.steps <= _EARLY)]
    enough = len(early) >= 4 and len(losses) >= 3 * _EARLY and story.names.optimizers(rank) == 1
    if not enough or not curve.comparable or float(np.median(early)) < contract.threshold("restless"):
        return None
    if float(early.min()) < 0.5 * contract.threshold("restless"):
        return None
    start = min(float(np.median(losses.values[:3])), float(losses.values[0]))  # the first update may have raised it
    meantime = losses.values[1 : 2 * _EARLY + 1]
    meanwhile = float(np.median(meantime))
    third = len(meantime) // 3
    falls = curves.slope(meantime) < -3 or np.median(meantime[-third:]) < 0.93 * np.median(meantime[:third])
    if falls and meanwhile < _ABOVE * start:
        return None  # large updates or not; from above its start it only comes back
    end = float(np.median(losses.values[-max(3, len(losses) // 4) :]))
    if start <= 0 or meanwhile < contract.threshold("meanwhile") * start or end < contract.threshold("learnt") * start:
        return None
    if out_of_proportion(story, rank, 1e4):
        return None
    rates = story.rates(rank).finite()
    rate = f" at a learning rate of up to {float(rates.values.max()):.3g}" if len(rates) else ""
    symptom = f"updates change the weights by {float(np.median(early)):.0%} of their size in every early step{rate}"
    finding = (
        f"The loss was {start:.4g} at first, {meanwhile:.4g} while updates were that large, and {end:.4g} at the end. "
        "0.1 % to 1 % is usual: each step undoes what the last ones learnt."
    )
    proof = (*moves.evidence, *losses.evidences((0, min(_EARLY, len(losses) - 1), len(losses) - 1)))
    return Violation(
        CONTRACT, "update-size", Severity.WARNING, symptom, int(moves.steps[0]), _EARLY, "", "optimizer", rank, proof,
        {"question": "Why does the loss hardly fall?", "asked": "How large are the updates?"},
        cause="learning-rate-too-high", certainty=0.75, explains=_FOLLOWS, static=True,
        whys=(Because("What does that do to the loss?", finding, "loss", proof),),
        action="Lower the learning rate by a factor of 10 or more.",
        experiment="Run the first steps with a tenth of the learning rate: the loss should now fall.",
    )  # fmt: skip


def _violation(story: Story, rank: int, moves: Moves, losses: Track, at: tuple[int, int], end: float) -> Violation:
    """``at`` is the place of the highest loss, and the step in which it was first too high."""
    place, known = at
    start, top, step = float(losses.values[0]), float(losses.values[place]), int(losses.steps[place])
    rates = story.rates(rank).finite()
    rate = f" at a learning rate of {float(rates.values[0]):.3g}" if len(rates) else ""
    share = float(moves.shares[0])
    symptom = f"the loss went from {start:.4g} to {top:.4g} by step {step:,} and is {end:.4g} at the end"
    first = f"The update of step {int(moves.steps[0]):,}"
    why = f"{first} changed the weights by {share:.0%} of their size{rate}; 0.1 % is usual."
    evidence = losses.evidences((0, place))
    proof = (*moves.evidence, *rates.evidences((0,)))
    norms = story.norms(rank).finite()
    excluded: tuple[Excluded, ...] = ()
    if len(norms):
        text = f"the gradient norm was {float(norms.values[0]):.3g} before the first update"
        excluded = (Excluded("exploding-gradients", text, norms.evidences((0,))),)
    return Violation(
        CONTRACT, "update-size", Severity.ERROR if end >= start else Severity.WARNING, symptom, int(moves.steps[0]),
        known, "", "optimizer", rank, evidence,
        {"question": "Why did the loss jump at once?", "asked": "What did the first updates do?"},
        cause="learning-rate-too-high", certainty=0.87, explains=_FOLLOWS, static=True, excluded=excluded,
        whys=(Because("How large were the updates?", why, "", proof),),
        action=f"Lower the learning rate by a factor of 10 to 100{rate.replace(' at a learning rate of', ': it is')}.",
        experiment="Run the first steps with a tenth of the learning rate: the loss should now fall.",
    )  # fmt: skip


RULE = StepSize
