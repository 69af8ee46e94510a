"""How far an operation may lie from the fp32 gold, by family and type; the only place where such a number stands.

Enters: a family (elementwise, reduction, logprob, attention), a type (fp32, bf16, fp16), forward or gradient. Leaves:
absolute and relative tolerance. Invariance has none: there the bytes are equal or they are not. A good kernel with
fp32 sums lands far inside these, so the measured error is always told beside them.
"""

from __future__ import annotations

from typing import NamedTuple

from brickprof.errors import ConfigurationError


class Tolerance(NamedTuple):
    """An error may be ``atol + rtol * |gold|``."""

    atol: float
    rtol: float


EXACT = Tolerance(0.0, 0.0)

FORWARD: dict[str, dict[str, Tolerance]] = {
    "elementwise": {
        "fp32": Tolerance(1e-5, 1e-5), "bf16": Tolerance(2e-2, 1.6e-2), "fp16": Tolerance(1e-3, 1e-3),
    },
    "reduction": {
        "fp32": Tolerance(1e-4, 1e-4), "bf16": Tolerance(5e-2, 2e-2), "fp16": Tolerance(1e-3, 1e-3),
    },
    "logprob": {
        "fp32": Tolerance(1e-5, 0.0), "bf16": Tolerance(6e-2, 0.0), "fp16": Tolerance(5e-3, 0.0),
    },
    "attention": {
        "fp32": Tolerance(1e-4, 1e-4), "bf16": Tolerance(5e-2, 2e-2), "fp16": Tolerance(1e-3, 1e-3),
    },
}  # fmt: skip

GRADIENT: dict[str, dict[str, Tolerance]] = {
    "elementwise": FORWARD["elementwise"] | {"bf16": Tolerance(2e-2, 1.6e-2)},
    "reduction": FORWARD["reduction"] | {"bf16": Tolerance(1e-1, 2e-2)},
    "logprob": FORWARD["logprob"] | {"bf16": Tolerance(5e-2, 0.0)},
    "attention": FORWARD["attention"] | {"bf16": Tolerance(5e-2, 2e-2)},
}

LOGPROB_OF_A_CHAIN = {"fp32": 1e-5, "bf16": 6e-2, "fp16": 5e-3}
"""max |dlogp| at the end of a chain."""
KL_OF_A_CHAIN = 0.05
"""mean(exp(d) - 1 - d)."""
CLIP = (0.8, 1.2)
"""No ratio exp(d) may lie outside."""


def tolerance(family: str, dtype: str, *, gradient: bool = False) -> Tolerance:
    table = GRADIENT if gradient else FORWARD
    if family not in table:
        raise ConfigurationError(f"there are no tolerances for the family {family!r}.", f"Known: {', '.join(table)}.")
    if dtype not in table[family]:
        raise ConfigurationError(f"there is no tolerance for {dtype}.", f"Known: {', '.join(table[family])}.")
    return table[family][dtype]
