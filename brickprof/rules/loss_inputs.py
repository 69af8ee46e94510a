"""What a loss function is given, against what it is defined on.

Enters: the looked-at calls of one loss function at one place of a script. Leaves: the ``Mistake`` that all of them
show, or None.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from brickprof.records import Event
from brickprof.rules.names import number

_FEW, _MANY = 3, 12
_PAIRED = ("mse", "l1", "smooth_l1", "huber")
_LOGISTIC = ("bce_logits", "multilabel_soft_margin")
_SIGNED = ("hinge", "soft_margin", "cosine", "margin_ranking")
_ONE_WAY = ("cross_entropy", "bce", "poisson_nll", "hinge", *_LOGISTIC)
"""Losses that are another number where input and target change places. (Those of differences are not, and a
divergence is taken either way on purpose.)"""


class Mistake(NamedTuple):
    cause: str
    seen: str
    """What the function was given, as the end of a sentence."""
    follows: str
    action: str
    certainty: float


def find(calls: list[Event], looks: int) -> Mistake | None:
    name = calls[0].fields.get("name")
    if len(calls) >= looks and name == "cross_entropy" and all(event.fields.get("classes") == 1 for event in calls):
        return _ONE_CLASS
    if len(calls) >= looks and name in _PAIRED and all(map(_all_pairs, calls)):
        return _pairs(calls[0])
    inputs = [event.fields["input"] for event in calls if isinstance(event.fields.get("input"), dict)]
    targets = [event.fields["target"] for event in calls if isinstance(event.fields.get("target"), dict)]
    if inputs and (swapped := _swapped(str(name), calls, targets)) is not None:
        return swapped  # what depends on what is the same in every step: one look is enough
    if len(inputs) < looks:
        return None
    return (
        _of_input(str(name), inputs)
        or _of_scores(str(name), calls, inputs)
        or _of_counts(str(name), calls, inputs)
        or _of_target(str(name), calls, targets, looks)
    )


def _swapped(name: str, calls: list[Event], targets: list[dict[str, Any]]) -> Mistake | None:
    """What should come from the data depends on the parameters, and what should depend on them does not."""
    known = [event.fields["requires"] for event in calls if isinstance(event.fields.get("requires"), list)]
    if len(known) < len(calls) or any(len(each) != 3 for each in known):
        return None
    variances = [event.fields["variance"] for event in calls if isinstance(event.fields.get("variance"), dict)]
    # A variance that is known beforehand is one number, mostly; targets of a batch are not.
    if name == "gaussian_nll" and variances and all(each[1:] == [True, False] for each in known):
        return _VARIANCE if all((number(each.get("std")) or 0.0) > 0 for each in variances) else None
    if name not in _ONE_WAY or not all(each[:2] == [False, True] for each in known):
        return None
    if name == "cross_entropy" and not any(map(_outside, targets)):
        return None  # the entropy of a distribution that is learnt, against a fixed one: that can be meant
    return _EXCHANGED


def _makers(calls: list[Event]) -> set[Any]:
    return {event.fields.get("made_by") for event in calls if isinstance(event.fields.get("input"), dict)}


def _of_scores(name: str, calls: list[Event], inputs: list[dict[str, Any]]) -> Mistake | None:
    """A sigmoid before a loss that has its own, or a softmax of its own."""
    if name == "cross_entropy" and _makers(calls) == {"Sigmoid"}:
        return _BOUNDED
    if name not in _LOGISTIC or len(inputs) < _FEW or not all(map(_probabilities, inputs)):
        return None
    # Scores of a model that has hardly begun may lie there by themselves, if nothing is seen to have put them there.
    known = any("made_by" in event.fields for event in calls)
    return _SIGMOID if not known or _makers(calls) <= {"Sigmoid", "Softmax"} or len(inputs) >= _MANY else None


def _of_counts(name: str, calls: list[Event], inputs: list[dict[str, Any]]) -> Mistake | None:
    """A Poisson likelihood: the logarithm of a rate, or the rate itself."""
    if name != "poisson_nll":
        return None
    logarithms = [_option(event, "log_input") for event in calls]
    if all(logarithms) and _makers(calls) <= {"Exp", "Softplus"}:
        return _RATES
    if all(told is False for told in logarithms) and all((number(given.get("min")) or 0.0) < 0 for given in inputs):
        return _LOG_RATES
    return None


def _option(event: Event, name: str) -> bool | None:
    options = event.fields.get("options")
    return options.get(name) if isinstance(options, dict) else None


def _of_input(name: str, inputs: list[dict[str, Any]]) -> Mistake | None:
    distribution = all(given.get("sums_to_one") and given.get("nonnegative", True) for given in inputs)
    logarithms = [given.get("log_distribution") for given in inputs]
    if name == "cross_entropy" and distribution:
        return DOUBLE
    if name in ("nll", "kl_div", "ctc") and distribution:
        return _PROBABILITIES if name != "ctc" else _FRAMES
    if name == "nll" and all(known is False for known in logarithms):
        return _RAW
    if name == "ctc" and all(_above(given, 1e-2) for given in inputs):
        return _RAW  # frames behind the end of a sequence may be filled with anything up to 0
    if name == "kl_div" and all(known is False for known in logarithms) and any(_above(g, 0.0) for g in inputs):
        return _RAW
    return None


def _of_target(name: str, calls: list[Event], targets: list[dict[str, Any]], looks: int) -> Mistake | None:
    if len(targets) < looks:
        return None
    if name == "kl_div" and all((number(each.get("min")) or 0.0) < 0 for each in targets):
        return _LOG_TARGETS if all(_option(event, "log_target") is False for event in calls) else None
    if name == "kl_div" and all(_probabilities(each) for each in targets):
        return _PLAIN_TARGETS if all(_option(event, "log_target") for event in calls) else None
    if name in _SIGNED and all(map(_zero_or_one, targets)):
        return _ZEROES
    if name not in ("bce", *_LOGISTIC):
        return None
    outside = [target for target in targets if _outside(target)]
    if len(outside) * 2 < len(targets):
        return None
    lowest = min(number(t.get("min")) or 0.0 for t in outside)
    highest = max(number(t.get("max")) or 0.0 for t in outside)
    return Mistake(
        "loss-input-mismatch", f"gets targets from {lowest:.4g} to {highest:.4g}, not from 0 to 1",
        "outside 0 to 1 it has no lower bound: the loss falls below zero and keeps falling",
        "Give targets between 0 and 1 (for labels of -1 and 1: (y + 1) / 2).", 0.95,
    )  # fmt: skip


def _zero_or_one(target: dict[str, Any]) -> bool:
    return (target.get("distinct"), target.get("min"), target.get("max")) == (2, 0.0, 1.0)


def _outside(target: dict[str, Any]) -> bool:
    return _above(target, 1.0) or (number(target.get("min")) or 0.0) < 0.0


def _above(given: dict[str, Any], bound: float) -> bool:
    highest = number(given.get("max"))
    return highest is not None and highest > bound


def _probabilities(given: dict[str, Any]) -> bool:
    low, high = number(given.get("min")), number(given.get("max"))
    return low is not None and high is not None and 0.0 <= low < high <= 1.0


def _all_pairs(event: Event) -> bool:
    """Whether input and target broadcast to something larger than both: each sample against every other."""
    shapes = event.fields.get("shapes")
    if not isinstance(shapes, list) or len(shapes) != 2 or not all(isinstance(shape, list) for shape in shapes):
        return False
    one, other = (list(map(int, shape)) for shape in shapes)
    longest = max(len(one), len(other))
    padded = [[1] * (longest - len(shape)) + shape for shape in (one, other)]
    made = [max(a, b) for a, b in zip(*padded, strict=True)]
    return made not in padded


def _pairs(event: Event) -> Mistake:
    one, other = event.fields["shapes"]
    return Mistake(
        "loss-input-mismatch", f"gets an input of shape {one} and a target of shape {other}",
        "the two broadcast: every output is compared with every target, and the best answer is their mean",
        "Give both the same shape: output.squeeze(-1), or target.unsqueeze(-1).", 0.97,
    )  # fmt: skip


DOUBLE = Mistake(
    "double-softmax", "gets rows that already are probabilities (they sum to 1)",
    "it applies softmax once more: between 0 and 1 there is no confident answer, the loss cannot fall to zero and "
    "gradients are small",
    "Remove the softmax at the end of the model: cross_entropy expects the raw scores.", 0.96,
)  # fmt: skip
_PROBABILITIES = Mistake(
    "loss-input-mismatch", "gets probabilities where it expects their logarithms",
    "it takes the probability itself for the log: the loss is bounded at -1 and punishes nothing",
    "Use log_softmax before it, or cross_entropy on the raw scores.", 0.96,
)  # fmt: skip
_FRAMES = Mistake(
    "loss-input-mismatch", "gets probabilities where it expects their logarithms",
    "it takes the probability itself for the log: the loss falls below zero, and a wrong frame costs hardly more "
    "than a right one",
    "Use log_softmax(-1) before it.", 0.96,
)  # fmt: skip
_BOUNDED = Mistake(
    "loss-input-mismatch", "gets scores between 0 and 1: a sigmoid was applied already",
    "its softmax cannot get far from even with them: the loss has a floor, and gradients are small",
    "Remove the sigmoid at the end of the model: cross_entropy expects the raw scores.", 0.92,
)  # fmt: skip
_RAW = Mistake(
    "loss-input-mismatch", "gets raw scores where it expects log-probabilities",
    "nothing normalises them: raising the score of the target lowers the loss without end",
    "Use log_softmax before it, or cross_entropy on the raw scores.", 0.95,
)  # fmt: skip
_VARIANCE = Mistake(
    "argument-order-swapped", "gets a target that depends on the parameters, and a variance that does not",
    "target and variance are in each other's place: the mean is drawn to the predicted variance, and the data says how "
    "much that counts",
    "Call gaussian_nll_loss(mean, target, var): the target comes second and the variance last.", 0.94,
)  # fmt: skip
_EXCHANGED = Mistake(
    "argument-order-swapped", "gets an input that does not depend on any parameter, and a target that does",
    "the two are in each other's place: the loss takes the labels for the model's answer, and its gradient is not the "
    "one that was meant",
    "Give the model's output first and the target second.", 0.93,
)  # fmt: skip
_RATES = Mistake(
    "loss-input-mismatch", "gets rates (above zero, by a softplus or exp) where it expects their logarithms",
    "log_input is on, as it is by default: it takes the exponential once more, and no rate below one can be said",
    "Give the logarithm of the rate, or pass log_input=False.", 0.92,
)  # fmt: skip
_LOG_RATES = Mistake(
    "loss-input-mismatch", "gets negative values where it expects rates (log_input=False)",
    "it takes the logarithm of what is below zero",
    "Leave log_input on for logarithms of rates, or make the rates positive (softplus).", 0.93,
)  # fmt: skip
_LOG_TARGETS = Mistake(
    "loss-input-mismatch", "gets targets below zero where it expects probabilities (log_target=False)",
    "it weighs every difference by a negative number, or takes the logarithm of one",
    "Pass log_target=True for log-probabilities, or give the probabilities themselves.", 0.94,
)  # fmt: skip
_PLAIN_TARGETS = Mistake(
    "loss-input-mismatch", "gets probabilities as targets where it expects their logarithms (log_target=True)",
    "it takes their exponential: the target is no distribution, and nothing can meet it",
    "Leave log_target off for probabilities, or give their logarithms.", 0.93,
)  # fmt: skip
_ZEROES = Mistake(
    "loss-input-mismatch", "gets targets of 0 and 1 where it expects -1 and 1",
    "a target of 0 belongs to neither side: those samples give no gradient, or that of both",
    "Give targets of -1 and 1: 2 * y - 1.", 0.92,
)  # fmt: skip
_SIGMOID = Mistake(
    "loss-input-mismatch", "gets values that all lie between 0 and 1: a sigmoid was applied already",
    "it applies sigmoid once more: no answer falls below 0.5, and the loss cannot fall to zero",
    "Remove the sigmoid at the end of the model, or use binary_cross_entropy.", 0.85,
)  # fmt: skip
_ONE_CLASS = Mistake(
    "loss-input-mismatch", "gets one class to choose from",
    "the only class always has probability 1: the loss is 0 and no gradient flows",
    "Use binary_cross_entropy_with_logits for one output, or give the model one output for each class.", 0.97,
)  # fmt: skip
