"""What an obligation of the user's own says, in the few forms that can be checked against any run.

Enters: the ``formal`` of an obligation. Leaves: a ``Formula``, or a complaint that names the place. Nothing of it is
ever executed:

    max(applied_grad_norm) <= max_norm       a quantity over all steps, against a number or a threshold's name
    min(grad_norm[encoder.0]) > 0            of one brick, or of one tensor
    last(lr) <= 1e-5                         max, min, first, last, median; distinct: how many values there were
    C-CLIP-001 holds                         another contract, by name; only PASS is a pass

``QUANTITIES`` lists what can be asked for; ``brickprof.rules.obligations`` measures it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

QUANTITIES = {
    "loss": "the loss",
    "lr": "the learning rate",
    "grad_norm": "|grad|{of} before clipping",
    "applied_grad_norm": "|grad| as the optimizer used it",
    "update_ratio": "update / weights{of}",
    "weights_changed": "the share of parameters{of} that changed",
    "input_size": "the largest value of a batch",
    "held_gradients": "gradients that still hold those of earlier steps",
    "nonfinite_inputs": "values in a batch that are not finite",
    "nonfinite_losses": "losses that are not finite",
    "nonfinite_gradients": "gradients that are not finite",
    "nonfinite_weights": "weights that are not finite",
}
"""What can be asked for, in words; of a brick where one may be named."""
OF_A_BRICK = frozenset(name for name, noun in QUANTITIES.items() if "{of}" in noun)
AGGREGATES = ("max", "min", "first", "last", "median", "distinct")
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq,
}  # fmt: skip
IN_WORDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above", "==": "exactly"}
_BOUND = re.compile(r"(\w+)\(\s*(\w+)\s*(?:\[(.+)\])?\s*\)\s*(<=|>=|==|<|>)\s*(\S{1,100})", re.DOTALL)
"""The right side has an end: behind a name that is full of brackets, one without would be tried at every bracket."""
_HOLDS = re.compile(r"([A-Z][A-Z0-9-]*) holds")


@dataclass(frozen=True, slots=True)
class Formula:
    """``aggregate(quantity[brick]) relation right``; or, with ``contract`` alone, that this one passes."""

    aggregate: str = ""
    quantity: str = ""
    brick: str = ""
    relation: str = ""
    right: str = ""
    """A number, or the name of a threshold."""
    contract: str = ""

    @property
    def text(self) -> str:
        if self.contract:
            return f"{self.contract} holds"
        where = f"[{self.brick}]" if self.brick else ""
        return f"{self.aggregate}({self.quantity}{where}) {self.relation} {self.right}"

    @property
    def noun(self) -> str:
        """What is measured, in words."""
        return QUANTITIES[self.quantity].replace("{of}", f" of {self.brick}" if self.brick else "")

    def bound(self, thresholds: Mapping[str, float]) -> float:
        return thresholds[self.right] if self.right in thresholds else float(self.right)

    def keeps(self, value: float, bound: float, tolerance: float = 0.0) -> bool:
        """Whether ``value`` is as it should be; what is no number never is."""
        slack = tolerance * abs(bound)
        if self.relation == "==":
            return abs(value - bound) <= slack
        return RELATIONS[self.relation](value, bound + (slack if "<" in self.relation else -slack))


def parse(formal: str, thresholds: Mapping[str, float]) -> Formula | str:
    """The formula that ``formal`` is, or what is wrong with it."""
    text = formal.strip()
    if found := _HOLDS.fullmatch(text):
        return Formula(contract=found[1])
    found = _BOUND.fullmatch(text)
    if not found:
        return "is nothing that can be checked; write it like max(grad_norm) <= 10 or C-CLIP-001 holds"
    formula = Formula(found[1], found[2], found[3] or "", found[4], found[5])
    return _complaint(formula, thresholds) or formula


def _complaint(formula: Formula, thresholds: Mapping[str, float]) -> str:
    if formula.aggregate not in AGGREGATES:
        return f"asks for {formula.aggregate}(...); known: {', '.join(AGGREGATES)}"
    if formula.quantity not in QUANTITIES:
        return f"asks for {formula.quantity!r}; known: {', '.join(QUANTITIES)}"
    if formula.brick and formula.quantity not in OF_A_BRICK:
        return f"asks for {formula.quantity} of one brick; only {', '.join(sorted(OF_A_BRICK))} are known of bricks"
    if formula.right in thresholds:
        return ""
    try:
        finite = math.isfinite(float(formula.right))
    except ValueError:
        return f"compares with {formula.right!r}, which is neither a number nor one of the thresholds"
    return "" if finite else "compares with a number that is not finite"
