"""Values of an optimizer that stand in each other's place.

Enters: an optimizer and what it runs with. Leaves: a violation where two of its values make no sense as they are, and
sense the other way round: constructors take them by position, and their order differs from one to the next.
"""

from __future__ import annotations

from brickprof.contracts.verdicts import Because, Severity, Violation
from brickprof.rules.declared import Optimizer

CONTRACT = "C-HYPERPARAMS-001"
_NO_MOMENTUM = 0.05
_LIKE_A_MOMENTUM = 0.5
_SLOW, _QUICK = 0.99, 0.95


def misplaced(one: Optimizer) -> Violation | None:
    found = _dampening(one) or _betas(one)
    if found is None:
        return None
    what, why = found
    evidence = tuple(one.evidence[-1:])
    return Violation(
        CONTRACT, "hyperparameters", Severity.ERROR, f"{one.cls} runs with {what}", 0, 0, "", "optimizer", one.rank,
        evidence,
        {"question": "Does the optimizer run with what was meant?", "asked": "Which update was made?"},
        "optimizer-hyperparameters-mismatch", 0.88,
        frozenset({"plateau", "not-learning", "slow-learning", "underfitting", "diverged", "spike"}),
        (Because("Why would anybody choose these?", why, "", evidence),),
        action=f"Pass the values of {one.cls} by name.", static=True,
    )  # fmt: skip


def _dampening(one: Optimizer) -> tuple[str, str] | None:
    momenta, dampening = one.values("momentum"), one.values("dampening")
    if (
        not momenta
        or not dampening
        or not 0 < max(momenta) < _NO_MOMENTUM
        or not _LIKE_A_MOMENTUM <= max(dampening) < 1
    ):
        return None
    return (
        f"a momentum of {max(momenta):g} and a dampening of {max(dampening):g}",
        f"A momentum of {max(momenta):g} does nothing, and {max(dampening):g} is a usual momentum: by position the "
        "order is lr, momentum, dampening, weight_decay.",
    )


def _betas(one: Optimizer) -> tuple[str, str] | None:
    pairs = one.pairs()
    if not pairs or not (_SLOW <= pairs[0][0] < 1 and 0 < pairs[0][1] <= _QUICK):
        return None
    first, second = pairs[0]
    return (
        f"betas of ({first:g}, {second:g})",
        f"The mean of the gradients forgets over {1 / (1 - first):,.0f} steps and that of their squares over "
        f"{1 / (1 - second):,.0f}: it is meant to be the other way round.",
    )
