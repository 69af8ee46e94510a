"""Whom a judgement is about, under words with which it can be called again, and the drifts found in it.

Enters: an operator, the function in its place, the reference. Leaves: a ``Drift`` for each thing that parted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from brickprof.operators.bits import Difference
from brickprof.operators.drift import Drift
from brickprof.operators.operator import Arguments, Operator
from brickprof.operators.problem import Function, Problem
from brickprof.operators.tolerances import EXACT, Tolerance

OWN = "own"


def name_of(function: Function | None) -> str:
    """package.module:function, or own for the operator's."""
    if function is None:
        return OWN
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"


@dataclass(frozen=True)
class Subject:
    operator: Operator
    function: Function
    reference: Function
    candidate: str
    reference_name: str
    device: str
    seed: int
    transforms: Collection[str]

    @property
    def own(self) -> bool:
        return self.function is self.operator.function

    def drift(
        self, problem: Problem, transform: str, case: str, direction: str, difference: Difference | None = None, *,
        note: str = "", parameters: Mapping[str, Any] | None = None, variant: Arguments | None = None,
        allowed: Tolerance = EXACT, launches: Mapping[str, int] | None = None,
    ) -> Drift:  # fmt: skip
        """``difference`` is None where something raised instead of giving a result; ``note`` says what."""
        found = difference or Difference(0, 0, None, 0.0, 0.0)
        return Drift(
            self.operator.name, self.candidate, self.reference_name, transform, case, dict(problem.sizes),
            problem.dtype, direction, problem.device, problem.seed, dict(parameters or {}),
            _shapes(problem.arguments), _shapes(variant or problem.arguments), allowed.atol, allowed.rtol,
            found.max_error, found.mean_error, found.mismatches, found.elements, found.first, dict(launches or {}),
            note or found.note,
        )  # fmt: skip


def _shapes(arguments: Arguments) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in arguments.items() if isinstance(each, Tensor)}
