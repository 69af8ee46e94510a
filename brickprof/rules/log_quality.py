"""C-LEARN-001, from a log: measures of quality leave the level of knowing nothing.

Enters: the measures of a log that grow with quality (accuracy, precision, recall, mAP, ...). Leaves: the symptom
``not-learning`` where every one of them is exactly 0 in evaluation after evaluation, or where all accuracies stay at
one half while the loss is no lower than that of a guess between two.

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
from brickprof.rules.log_view import View, show, view
from brickprof.rules.story import Story, Track

CONTRACT = "C-LEARN-001"
_GROWING = frozenset({"precision", "recall", "map", "accuracy", "acc", "f1", "bleu", "iou", "miou", "auc", "top1"})
_PLAIN = frozenset({"accuracy", "acc", "train", "training", "val", "valid", "validation", "test", "eval", "binary"})
_ZEROS = 15
_HALVES = 20
_AROUND = 0.06
_MOVED = 0.03


class LoggedQuality:
    contract = CONTRACT
    told_by = "log"

    def judge(self, story: Story, contract: Contract) -> ContractResult:
        seen = view(story)
        if seen is None:
            return outcomes.vacuous(contract, "this is no log")
        measures = _measures(seen)
        if not measures:
            return outcomes.unjudged(contract, "the log has no measure of quality that grows")
        if not seen.from_the_start:
            return outcomes.unjudged(contract, "the log does not begin where the training does")
        violation = _nothing(seen, measures) or _guesses(seen, measures)
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
        CONTRACT, "not-learning", Severity.WARNING, symptom, int(found.steps[0]), int(found.steps[-1]), "loss", "step",
        seen.rank, proof, details,
    )  # fmt: skip


RULE = LoggedQuality
