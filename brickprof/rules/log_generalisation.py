"""C-GENERAL-001, from a log: what is learnt holds for data that was not trained on.

Enters: evaluation losses, the training loss, other measures. Leaves: overfitting, with the step of the lowest
evaluation: its loss turned and rises, by more than its noise, while the training loss goes on falling. A measure that
still gets better (an accuracy, a word error rate) is said with it.

Which of several evaluation sets stands for what the model is for, a log does not say: where none is plainly the
evaluation loss, nothing is judged. Parts (box, class) are added up, as in training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.logs.reading import names
from brickprof.rules import curves, outcomes, wording
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-GENERAL-001"
_FEWEST = 4
_LATER = 3
_TREND = 0.7
_SLIGHT = 1.12
_FELL = 0.85
_APART = 1.15
_PLAIN = frozenset({"loss", "eval", "val", "valid", "validation", "test", "dev", "evaluation", "epoch", "total", "lm",
                    "nll", "tel", "ce", "metrics", "mean", "average", "avg"})  # fmt: skip


class Turn(NamedTuple):
    held: Track
    best: int
    last: float
    train: tuple[float, float]

    @property
    def low(self) -> float:
        return float(self.held.values[self.best])

    @property
    def step(self) -> int:
        return int(self.held.steps[self.best])


class LoggedGeneralisation:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None or not seen.evaluations:
            return outcomes.unjudged(contract, "the log has no evaluation loss; `brickprof run` records evaluations")
        plain, others = _sets(seen)
        judged = plain or others
        turns = {name: turn for name, held in judged.items() if (turn := _turn(seen, held, contract)) is not None}
        known = max((len(held.finite()) for held in judged.values()), default=0)
        if turns and not plain:
            which = "which of them stands for what the model is for, the log does not say"
            return outcomes.unjudged(contract, f"{len(turns)} of {len(judged)} evaluation sets get worse; {which}")
        if turns:
            return _broken(seen, contract, turns)
        if known < _FEWEST:
            return outcomes.unjudged(contract, f"{wording.count(known, 'evaluation')}: too few to see a turn")
        name, held = max(judged.items(), key=lambda item: len(item[1]))
        ends = held.finite().values
        return outcomes.held(contract, f"{name} from {show(float(ends[0]))} to {show(float(ends[-1]))}")


def _sets(seen: View) -> tuple[dict[str, Track], dict[str, Track]]:
    """The evaluation loss as such (or the sum of its parts), and the losses of sets with names of their own."""
    told = {name: held for name, held in seen.evaluations.items() if "step" not in names.words(name)}
    told = told or seen.evaluations
    plain = {name: held for name, held in told.items() if frozenset(names.words(name)) <= _PLAIN}
    if plain:
        return plain, {}
    if len(told) == 1:
        return told, {}
    if (whole := _summed(seen, told)) is not None:
        return {"the sum of the evaluation losses": whole}, {}
    return {}, told


def _summed(seen: View, told: dict[str, Track]) -> Track | None:
    """The sum of parts that stand in training under the same names."""
    own = {_part(name) for name in (*seen.measures("loss"), str(seen.log.get("loss")))}
    if not {_part(name) for name in told} <= own:
        return None
    tracks = list(told.values())
    first = tracks[0]
    if any(len(one) != len(first) or not np.array_equal(one.steps, first.steps) for one in tracks):
        return None
    return Track(first.steps, np.sum([one.values for one in tracks], axis=0), first.seqs, first.rank)


def _part(name: str) -> tuple[str, ...]:
    return tuple(
        word for word in names.words(name) if word not in {"train", "val", "eval", "valid", "test", "validation"}
    )


def _trained(seen: View, step: int) -> float | None:
    """The training loss around ``step``; of parts, their sum."""
    told = [seen.finite]
    if seen.several:
        told += [one.finite() for one in seen.measures("loss").values()]
    levels = []
    for one in told:
        before = one.until(step)
        before = before if len(before) else one.where(one.steps <= (one.steps[0] if len(one) else 0))
        if len(before):
            levels.append(float(np.median(before.values[-max(1, min(5, len(one) // 20)) :])))
    return sum(levels) if levels else None


def _turn(seen: View, held: Track, contract: Contract) -> Turn | None:
    held = held.per_step().finite()
    if len(held) < _FEWEST or bool(np.any(held.values < 0)):
        return None
    best = int(np.argmin(held.values))
    later = held.values[best:]
    low, last = float(held.values[best]), float(np.median(held.values[-min(3, len(later)) :]))
    if len(later) <= _LATER or low <= 0:
        return None
    noise = curves.jitter(held.values) if len(held) >= 8 else 0.0
    far = last > contract.threshold("rise") * low and float(held.values[-1]) > low + 0.5 * (last - low)
    steady = last > _SLIGHT * low and len(later) >= 5 and _rank_correlation(later) > _TREND
    if not (far or steady) or last - low < 4 * noise / np.sqrt(min(3, len(later))):
        return None
    if not far and (gains := _gains(seen, int(held.steps[best]))) is not None and gains[1] > 0:
        return None  # what is measured still gets better: a slight turn of the loss is no reason to stop
    then, now = _trained(seen, int(held.steps[best])), _trained(seen, int(held.steps[-1]))
    if then is None or now is None or now > _FELL * then or last < _APART * now:
        return None
    return Turn(held, best, last, (then, now))


def _rank_correlation(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    ranks = np.argsort(np.argsort(values)).astype(float)
    place = np.arange(len(values), dtype=float)
    return float(np.corrcoef(place, ranks)[0, 1]) if len(values) > 2 else 0.0


def _broken(seen: View, contract: Contract, turns: dict[str, Turn]) -> ContractResult:
    name, turn = min(turns.items(), key=lambda item: item[1].step)
    symptom = (
        f"{name} rose from {show(turn.low)} ({seen.at(turn.step)}) to {show(float(turn.held.values[-1]))} "
        f"while the training loss fell to {show(turn.train[1])}"
    )
    held, (then, now) = turn.held, turn.train
    proof = held.evidences((turn.best, len(held) - 1))
    train = seen.finite.evidences((len(seen.finite) - 1,)) if len(seen.finite) else ()
    fell = f"In the same {seen.unit}s the training loss fell from {show(then)} to {show(now)}: learnt by heart."
    whys = [Because("What did training do meanwhile?", fell, "", (*proof, *train))]
    if (better := _measures(seen, turn)) is not None:
        whys.append(better)
    ahead = np.flatnonzero(held.values[turn.best :] > turn.low + 0.5 * (turn.last - turn.low))
    known = int(held.steps[turn.best + int(ahead[0])]) if len(ahead) else int(held.steps[-1])
    violation = Violation(
        CONTRACT, "overfitting", Severity.WARNING, symptom, turn.step, known, "", "step",
        seen.rank, proof, {"logged": True, "question": "Does it hold for other data?"}, "overfitting",
        0.9, frozenset({"plateau"}), tuple(whys), (),
        f"Keep the weights of {seen.at(turn.step)} (early stopping); more data, dropout, weight decay move that point.",
    )  # fmt: skip
    return outcomes.broken(contract, [violation])


def _gains(seen: View, step: int) -> tuple[str, float, Track] | None:
    """The measure of the evaluations that moved most since ``step``: its name, and by how much it got better."""
    found = []
    for name, one in _of_evaluations(seen.measures("quality")).items():
        after = one.per_step().finite().since(step)
        if len(after) < _LATER:
            continue
        count = min(3, len(after) // 2)
        first, last = float(np.median(after.values[:count])), float(np.median(after.values[-count:]))
        gain = (first - last if names.falls(name) else last - first) / max(abs(first), 1e-12)
        if abs(gain) >= 0.005:
            found.append((name, gain, after))
    return max(found, key=lambda told: told[1], default=None)


def _of_evaluations(told: dict[str, Track]) -> dict[str, Track]:
    """Those that are plainly of evaluations, where any is: the others are of training; else those that may be."""
    plainly = {name: one for name, one in told.items() if names.evaluates(name)}
    return plainly or {name: one for name, one in told.items() if not {"train", "training"} & {*names.words(name)}}


def _measures(seen: View, turn: Turn) -> Because | None:
    """A measure of the evaluations that still got better after the turn, or that got worse too."""
    told = _gains(seen, turn.step)
    if told is None:
        return None
    name, gain, after = told
    first, last = float(after.values[0]), float(after.values[-1])
    how = "still got better" if gain > 0 else "got worse too"
    text = f"{name} {how}: {show(first)} at {seen.at(int(after.steps[0]))}, {show(last)} at the end."
    if gain > 0:
        text += " What it measures may be what counts; the probabilities behind it are no longer to be trusted."
    return Because("Is everything worse?", text, "", after.evidences((0, len(after) - 1)))


RULE = LoggedGeneralisation
