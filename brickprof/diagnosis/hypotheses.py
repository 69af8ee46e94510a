"""One possible root cause with what speaks for it and against it.

Enters: facts, each with a weight and the records that show it. Leaves: a confidence that is computed,
never claimed: evidence for, against the sum of evidence for, evidence against and evidence that is
missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from brickprof.diagnosis.model import RuledOut, Why

_DOUBT = 0.25
_MISSING = 0.5
_OUT_BELOW = 0.35


class Fact(NamedTuple):
    text: str
    weight: float = 1.0
    evidence: tuple[str, ...] = ()


@dataclass(slots=True)
class Hypothesis:
    root_cause: str
    support: list[Fact] = field(default_factory=list)
    against: list[Fact] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    whys: list[Why] = field(default_factory=list)
    """The last questions of the chain, which end in this cause."""
    action: str = ""
    next_experiment: str = ""
    brick: str = ""
    """Where it lies, when this cause knows that better than the symptom does."""

    def supports(self, text: str, weight: float = 1.0, *evidence: str) -> None:
        self.support.append(Fact(text, weight, _ids(evidence)))

    def contradicts(self, text: str, weight: float = 1.0, *evidence: str) -> None:
        self.against.append(Fact(text, weight, _ids(evidence)))

    def lacks(self, what: str) -> None:
        self.missing.append(what)

    @staticmethod
    def weight_of(certainty: float) -> float:
        """The weight that, alone, gives this confidence."""
        return _DOUBT * certainty / (1 - min(certainty, 0.99))

    @property
    def confidence(self) -> float:
        support = sum(fact.weight for fact in self.support)
        doubt = sum(fact.weight for fact in self.against) + _MISSING * len(self.missing) + _DOUBT
        return round(min(0.99, support / (support + doubt)), 2)

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(identifier for fact in self.support for identifier in fact.evidence))

    def ruled_out(self) -> RuledOut | None:
        """This hypothesis as one that the evidence speaks against."""
        if not self.against or self.confidence >= _OUT_BELOW:
            return None
        heaviest = max(self.against, key=lambda fact: fact.weight)
        return RuledOut(self.root_cause, heaviest.text, heaviest.evidence)


def best(hypotheses: list[Hypothesis]) -> Hypothesis | None:
    supported = [hypothesis for hypothesis in hypotheses if hypothesis.support]
    return max(supported, key=lambda hypothesis: hypothesis.confidence, default=None)


def _ids(evidence: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(identifier for identifier in evidence if identifier)
