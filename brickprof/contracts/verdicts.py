"""What a contract comes to: the four verdicts, one violation, one result.

Enters: what a rule observed. Leaves: plain frozen data that diagnosis, reports and others read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Only PASS is a pass."""

    PASS = "PASS"
    FAIL = "FAIL"
    VACUOUS = "VACUOUS"
    """Nothing was exercised: zero steps, zero samples."""
    NOT_EVALUATED = "NOT_EVALUATED"
    """The evidence that would decide is absent."""


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Violation:
    """One incident in which a contract was broken, with the records that show it."""

    contract: str
    what: str
    """The kind of thing that broke: loss, grad, weight, activation, no-gradient, exception, ..."""
    severity: Severity
    symptom: str
    first_step: int
    detected_step: int
    brick: str = ""
    granularity: str = "block"
    rank: int = 0
    evidence: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContractResult:
    id: str
    verdict: Verdict
    observed: str = ""
    threshold: str = ""
    why: str = ""
    violations: tuple[Violation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "verdict": self.verdict.value,
            "observed": self.observed,
            "threshold": self.threshold,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ContractResult:
        observed, threshold, why = (str(fields.get(name, "")) for name in ("observed", "threshold", "why"))
        return cls(str(fields["id"]), Verdict(fields["verdict"]), observed, threshold, why)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict over several: one FAIL fails, and a pass needs something that passed."""
    seen = set(verdicts)
    for verdict in (Verdict.FAIL, Verdict.PASS, Verdict.VACUOUS):
        if verdict in seen:
            return verdict
    return Verdict.NOT_EVALUATED
