"""C-GENERAL-001: what is learnt holds for data that was not trained on.

Enters: the story: losses of training and of evaluations. Leaves: ``overfitting`` (the evaluation turned and keeps
rising while training goes on falling) and ``underfitting`` (both stay near the level of guessing although much time
went by).
"""

from __future__ import annotations

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.rules import curves, outcomes, wording
from brickprof.rules.curves import Curve, evaluations
from brickprof.rules.story import Story, Track

CONTRACT = "C-GENERAL-001"


class Generalisation:
    contract = CONTRACT

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        if not story.trained:
            return outcomes.vacuous(contract, "no training was observed")
        found = [(curves.curve(story, rank), evaluations(story, rank)) for rank in story.ranks]
        judged = [(curve, held) for curve, held in found if curve.comparable and len(held) >= 2]
        if not judged:
            return outcomes.unjudged(contract, "fewer than two evaluations with a loss were seen")
        violations = []
        for curve, held in judged:
            violation = _overfitting(curve, held, contract) or _underfitting(story, curve, held, contract)
            violations += [violation] if violation is not None else []
        if violations:
            return outcomes.broken(contract, violations[:1])
        held = judged[0][1]
        observed = f"{wording.count(len(held), 'evaluation')}, the last at {held.values[-1]:.4g}"
        if len(held) < contract.threshold("evaluations"):
            return outcomes.unjudged(contract, "too few evaluations to see them turn", observed)
        return outcomes.held(contract, observed)


def _train_level(curve: Curve, step: int) -> float | None:
    """The training loss around ``step``."""
    before = curve.track.until(step)
    count = min(len(before), max(5, len(curve) // 20))
    return float(np.median(before.values[-count:])) if count else None


def _overfitting(curve: Curve, held: Track, contract: Contract) -> Violation | None:
    if len(held) < contract.threshold("evaluations") or bool(np.any(held.values < 0)):
        return None
    best = int(np.argmin(held.values))
    later = held.values[best:]
    low, last = float(held.values[best]), float(np.median(held.values[-3:]))
    turned = len(later) >= 4 and last > contract.threshold("rise") * low and curves.spread(np.diff(later)) < last - low
    then, now = _train_level(curve, int(held.steps[best])), _train_level(curve, int(held.steps[-1]))
    if not turned or then is None or now is None:
        return None
    fell, apart = now < 0.7 * then, last > contract.threshold("gap") * max(now, 1e-12)
    if not (fell and apart):
        return None
    return _overfitted(curve, held, best, last, (then, now))


def _overfitted(curve: Curve, held: Track, best: int, last: float, train: tuple[float, float]) -> Violation:
    low, at = float(held.values[best]), int(held.steps[best])
    symptom = f"evaluation loss rose from {low:.4g} (step {at:,}) to {last:.4g} while the training loss fell"
    ahead = np.flatnonzero(held.values[best:] > low + 0.5 * (last - low))
    seen = int(held.steps[best + int(ahead[0])]) if len(ahead) else int(held.steps[-1])
    proof = (*held.evidences((best, len(held) - 1)), curve.track.evidence(len(curve) - 1))
    fell = f"In the same steps the training loss fell from {train[0]:.4g} to {train[1]:.4g}"
    finding = f"{fell}: it learns the samples by heart."
    return Violation(
        CONTRACT, "overfitting", Severity.WARNING, symptom, at, seen, "", "step", held.rank, proof,
        {"question": "Does it hold for other data?"}, "overfitting", 0.9, frozenset({"plateau"}),
        (Because("What did training do meanwhile?", finding, "", proof),), (),
        f"Keep the weights of step {at:,} (early stopping); more data, dropout or weight decay move that point.",
    )  # fmt: skip


def _underfitting(story: Story, curve: Curve, held: Track, contract: Contract) -> Violation | None:
    """Both curves stand still, near each other, not far below guessing."""
    chance = curves.chance(story, curve.track.rank)
    if chance is None or len(curve) < contract.threshold("steps"):
        return None
    half = curve.values[len(curve) // 2 :]
    level, last = float(np.median(half)), float(np.median(held.values[-3:]))
    little = 0.6 * chance.level < level < 0.97 * chance.level
    still = curves.slope(half) > -2 and abs(level - float(np.median(half[-len(half) // 4 :]))) < 0.02 * level
    near = abs(last - level) < 0.1 * level
    if not (little and still and near):
        return None
    symptom = f"training and evaluation both stay at {level:.4g}; guessing costs {chance.level:.4g}"
    proof = (*curve.track.evidences((len(curve) // 2, len(curve) - 1)), *held.evidences((len(held) - 1,)))
    finding = (
        "More of the same data changes nothing, and nothing is learnt by heart: the model is too small or too bound."
    )
    return Violation(
        CONTRACT, "underfitting", Severity.INFO, symptom, curve.step(len(curve) // 2), curve.step(len(curve) - 1), "",
        "step", held.rank, proof, {"question": "Why does it learn so little?"}, "underfitting", 0.5, frozenset(),
        (Because("Is it the data, or the model?", finding, "", proof),), (),
        "Try a larger model or less regularisation; if nothing changes, the labels have this much noise.",
    )  # fmt: skip


RULE = Generalisation
