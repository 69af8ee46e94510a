"""C-LEARN-001, from a log: measures of quality leave the level of knowing nothing.

Enters: the measures of a log that grow with quality (accuracy, precision, recall, mAP, ...). Leaves: the symptom
``not-learning`` where every one of them is exactly 0 in evaluation after evaluation, or where all accuracies stay at
one half while the loss is no lower than that of a guess between two. Of a log without a loss they are all there is: one
that got better shows learning, one that fell back to less than half and stays there shows that it was lost, and
accuracies that never leave the level of a guess show that nothing is learnt.

A training may take its time: so many evaluations are asked for that patience has an end. A measure of a part that is
meant to know nothing (the domain of a domain-adversarial model) has another name than the accuracy of the model.
"""

from __future__ import annotations

import math

import numpy as np

from brickprof.contracts.schema import Contract
from brickprof.contracts.verdicts import Because, ContractResult, Severity, Violation
from brickprof.logs.reading import names
from brickprof.rules import outcomes
from brickprof.rules.log_learning import better
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-LEARN-001"
_GROWING = frozenset({"precision", "recall", "map", "accuracy", "acc", "f1", "bleu", "iou", "miou", "auc", "top1"})
_PLAIN = frozenset({"accuracy", "acc", "train", "training", "val", "valid", "validation", "test", "eval", "binary"})
_ZEROS = 15
_HALVES = 20
_AROUND = 0.06
_MOVED = 0.03
_CLASSES = (2, 10, 100, 1000)
_NEAR = 0.05
_ENOUGH = 12
_LASTING = 4


class LoggedQuality:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None:
            return outcomes.vacuous(contract, "this is no log")
        measures = _measures(seen)
        if not len(seen.loss) and (lost := _lost(seen, measures)) is not None:
            return outcomes.broken(contract, [lost], "what was learnt stays")
        if not len(seen.loss) and (improved := better(seen)):
            return outcomes.held(contract, f"{improved} got better; the log has no loss")
        if not measures:
            return outcomes.unjudged(contract, "the log has no measure of quality that grows")
        if not seen.from_the_start:
            return outcomes.unjudged(contract, "the log does not begin where the training does")
        guesses = _guesses if len(seen.loss) else _guesses_alone
        violation = _nothing(seen, measures) or guesses(seen, measures)
        if violation is not None:
            return outcomes.broken(contract, [violation], "measures of quality leave the level of knowing nothing")
        return outcomes.unjudged(contract, "measures of quality alone do not decide it")


def _measures(seen: View) -> dict[str, Track]:
    """Measures that grow with quality, by name."""
    told = seen.measures("quality").items()
    return {name: one.finite() for name, one in told if frozenset(names.words(name)) & _GROWING and len(one)}


def _nothing(seen: View, measures: dict[str, Track]) -> Violation | None:
    """Exactly nothing is found or told right, in every evaluation of many."""
    if any(len(one) < _ZEROS or bool(np.any(one.values != 0)) for one in measures.values()):
        return None
    name, found = next(iter(measures.items()))
    others = f" and {len(measures) - 1} more" if len(measures) > 1 else ""
    symptom = f"{name}{others} stayed exactly 0 in all {len(found)} evaluations: nothing is learnt"
    text = "Nothing that the model says is ever right: it finds no object, or no label fits what it is asked for."
    return _violation(seen, found, symptom, text)


def _guesses(seen: View, measures: dict[str, Track]) -> Violation | None:
    """Accuracies of one half, and a loss no lower than that of a guess."""
    plain = {name: one for name, one in measures.items() if frozenset(names.words(name)) <= _PLAIN}
    if not plain or any(len(one) < _HALVES or not _halves(one) for one in plain.values()):
        return None
    if not len(seen.finite) or float(np.median(seen.finite.values[-5:])) < 0.98 * math.log(2):
        return None
    name, found = next(iter(plain.items()))
    level = float(np.median(found.values))
    symptom = f"{name} stayed at {show(level)} over {len(found)} points, as a guess between two does"
    text = f"The loss ({show(float(seen.finite.values[-1]))}) is no lower than ln 2 = 0.693, which guessing costs."
    return _violation(seen, found, symptom, text)


def _guesses_alone(seen: View, measures: dict[str, Track]) -> Violation | None:
    """Accuracies that are those of a guess among two, ten, a hundred, a thousand, and never anything else."""
    plain = {name: one for name, one in measures.items() if frozenset(names.words(name)) <= _PLAIN}
    for classes in _CLASSES:
        even = 1.0 / classes
        near = [
            len(one) >= _HALVES and bool(np.all(np.abs(one.values - even) < _NEAR * even)) for one in plain.values()
        ]
        if plain and all(near):
            name, found = next(iter(plain.items()))
            symptom = (
                f"{name} stayed at {show(float(np.median(found.values)))} over {len(found)} points: nothing is learnt"
            )
            text = f"A guess among {classes:,} is right in {show(even)} of all cases, and it never was in more."
            return _violation(seen, found, symptom, text)
    return None


def _lost(seen: View, measures: dict[str, Track]) -> Violation | None:
    """A measure that had grown, and then fell to less than half for good; all of them, where there are several."""
    places = [_fallen(one) for one in measures.values()]
    if not places or any(place is None for place in places):
        return None
    (name, found), place = next(iter(measures.items())), places[0]
    assert place is not None
    before = float(np.median(found.values[max(0, place - 3) : place]))
    symptom = (
        f"{name} fell from {show(before)} to {show(float(found.values[place]))} at {seen.at(int(found.steps[place]))} "
        "and stays there"
    )
    proof = found.evidences((place - 1, place, len(found) - 1))
    details = {"logged": True, "question": "What was lost?", "step": int(found.steps[place]), "by_evaluation": True}
    return Violation(
        CONTRACT, "diverged", Severity.WARNING, symptom, int(found.steps[place]), int(found.steps[-1]), "", "step",
        seen.rank, proof, details,
    )  # fmt: skip


def _fallen(found: Track) -> int | None:
    """Where it fell to less than half of what it had reached, never to come back; None where it did not."""
    if len(found) < _ENOUGH:
        return None
    reached = float(np.percentile(found.values, 90))
    above = np.flatnonzero(found.values > 0.5 * reached)
    place = int(above[-1]) + 1 if len(above) else 0
    lasting = len(found) - place >= max(_LASTING, len(found) // 10)
    grown = reached > 1.5 * max(float(found.values[0]), 0.0)
    return place if grown and lasting and place >= _LASTING and above[0] < place else None


def _halves(found: Track) -> bool:
    third = max(1, len(found) // 3)
    moved = abs(float(np.median(found.values[-third:])) - float(np.median(found.values[:third])))
    return moved < _MOVED and bool(np.all(np.abs(found.values - 0.5) < _AROUND))


def _violation(seen: View, found: Track, symptom: str, text: str) -> Violation:
    proof = found.evidences((0, len(found) // 2, len(found) - 1))
    details = {
        "logged": True, "question": "Does the model get better?", "step": int(found.steps[0]),
        "then": (Because("What does the level say?", text, "", proof),),
    }  # fmt: skip
    return Violation(
        CONTRACT, "not-learning", Severity.WARNING, symptom, int(found.steps[0]), int(found.steps[-1]),
        "loss" if len(seen.loss) else "", "step", seen.rank, proof, details,
    )  # fmt: skip


RULE = LoggedQuality
