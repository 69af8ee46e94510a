"""What is said of a chain: its links, its aggregates, and who is to blame.

Enters: verdicts and numbers. Leaves: plain data for reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from brickprof.operators.bits import portable
from brickprof.operators.judgement import Verdict


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    index: int
    """Its place in this chain."""
    verdict: Verdict
    """NOT_EVALUATED where an earlier link had failed: what got other inputs says nothing of itself."""
    max_error: float
    """Against its gold, on the inputs that it got."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """d is the difference of log probabilities, token by token."""

    against: str
    verdict: Verdict
    max_dlogp: float
    approx_kl0: float
    """mean(exp(d) - 1 - d)"""
    clip_fraction: float
    """Tokens whose ratio exp(d) would be clipped."""
    allowed: float
    """Of max |dlogp|."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Chain:
    verdict: Verdict
    dtype: str
    device: str
    seed: int
    sizes: Mapping[str, int]
    links: tuple[Link, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    blame: str = ""
    """A link, or integration."""
    why: str = ""
    candidates: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict, "dtype": self.dtype, "device": self.device, "seed": self.seed,
            "sizes": dict(self.sizes), "candidates": dict(self.candidates), "blame": self.blame, "why": self.why,
            "links": [_portable(asdict(link)) for link in self.links],
            "aggregates": [_portable(asdict(each)) for each in self.aggregates],
        }  # fmt: skip


def _portable(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: portable(value) if isinstance(value, float) else value for name, value in fields.items()}
