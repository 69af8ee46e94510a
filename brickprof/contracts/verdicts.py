"""What a contract comes to: the four verdicts, one violation, one result.

Enters: what a rule observed. Leaves: plain frozen data that diagnosis, reports and others read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
class Because:
    """One question and its answer, with the records that show it."""

    question: str
    finding: str
    brick: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excluded:
    """A rival cause that the evidence speaks against."""

    root_cause: str
    because: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """One incident in which a contract was broken, with the records that show it.

    A symptom (the loss is NaN, nothing is learnt) leaves ``cause`` empty: diagnosis weighs what may lie behind it. A
    mechanism (clipping never ran, the betas are not the declared ones) is a cause itself: it names it, says how
    certain it is, and which symptoms it ``explains``, so that one incident stays one finding.
    """

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
    cause: str = ""
    """The root cause (an id of the catalogue) where the violation is a mechanism."""
    certainty: float = 0.9
    """Of the mechanism: how often a violation like this one is the cause it names."""
    explains: frozenset[str] = frozenset()
    """What else (``what`` of other violations) follows from this one if it starts no earlier."""
    whys: tuple[Because, ...] = ()
    """Of the mechanism: the questions after the symptom, the root cause last."""
    excluded: tuple[Excluded, ...] = ()
    action: str = ""
    experiment: str = ""
    static: bool = False
    """Whether it was so from the beginning: a setting, a wiring; not something that came about."""

    @property
    def mechanism(self) -> bool:
        return bool(self.cause)


@dataclass(frozen=True, slots=True)
class ContractResult:
    id: str
    verdict: Verdict
    observed: str = ""
    threshold: str = ""
    why: str = ""
    violations: tuple[Violation, ...] = ()
    aside: bool = False
    """Whether ``why`` only says that nothing was seen which this rule speaks of: any other rule's reason says more."""

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


def together(one: ContractResult, other: ContractResult) -> ContractResult:
    """Two results on one contract, from two rules that watch different obligations of it."""
    verdict = overall((one.verdict, other.verdict))
    if one.verdict is other.verdict is Verdict.NOT_EVALUATED:
        return _unjudged(one, other)
    led, other = (one, other) if one.verdict is verdict else (other, one)
    why = led.why or (other.why if other.verdict is not verdict else "")
    return ContractResult(
        led.id, verdict, led.observed, led.threshold or other.threshold, why, led.violations + other.violations
    )


def _unjudged(one: ContractResult, other: ContractResult) -> ContractResult:
    """Neither could judge: the reasons of both, less those that stand aside."""
    telling = [each for each in (one, other) if not each.aside] or [one]
    led = next((each for each in telling if each.observed), telling[0])
    why = "; ".join(dict.fromkeys(each.why for each in telling if each.why))
    return replace(
        led, threshold=one.threshold or other.threshold, why=why, violations=one.violations + other.violations,
        aside=one.aside and other.aside,
    )  # fmt: skip
