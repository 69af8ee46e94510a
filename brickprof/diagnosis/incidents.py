"""One incident, one finding: what follows from a cause is told under it and not beside it.

Enters: every violation of a run. Leaves: incidents, the one to fix first on top. A mechanism leads the symptoms that it
explains and that began no earlier; a symptom without a mechanism leads itself, and what it brings about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from brickprof.contracts.verdicts import Severity, Violation

_RANKING = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
ENDINGS = frozenset({"crashed", "exited"})
_BROUGHT_ABOUT = {
    "nonfinite": ENDINGS | {"diverged", "spike", "not-learning", "exploding", "plateau"},
    "diverged": ENDINGS | {"spike", "not-learning", "plateau"},
    "exploding": frozenset({"spike"}),
    "not-learning": frozenset({"plateau"}),
    "hung": ENDINGS | {"killed", "interrupted"},
    "no-gradient": frozenset({"not-learning", "plateau"}),
}
"""What a symptom brings about by itself."""


@dataclass(slots=True)
class Incident:
    lead: Violation
    symptoms: list[Violation] = field(default_factory=list)

    @property
    def seen(self) -> Violation:
        """What a person would notice first."""
        return self.symptoms[0] if self.symptoms and self.lead.mechanism else self.lead

    @property
    def severity(self) -> Severity:
        return min((v.severity for v in (self.lead, *self.symptoms)), key=_RANKING.__getitem__)


def incidents(violations: Iterable[Violation]) -> list[Incident]:
    found: list[Incident] = []
    for violation in sorted(violations, key=_leads_first):
        leader = _leader(violation, found)
        if leader is None:
            found.append(Incident(violation))
        else:
            leader.symptoms.append(violation)
    for incident in found:
        incident.symptoms.sort(key=_noticed_first)
    return sorted(found, key=_fix_first)


def _leads_first(violation: Violation) -> tuple[int, int, int, float, int]:
    """Mechanisms before symptoms; among them the graver, what brings more about, the more certain, the earlier."""
    return (
        not violation.mechanism, _RANKING[violation.severity], -len(_BROUGHT_ABOUT.get(violation.what, ())),
        -violation.certainty if violation.mechanism else 0.0, violation.first_step,
    )  # fmt: skip


def _leader(violation: Violation, found: list[Incident]) -> Incident | None:
    if violation.severity is Severity.INFO:
        return None
    return next((incident for incident in found if _explains(incident.lead, violation)), None)


def _explains(lead: Violation, other: Violation) -> bool:
    if lead.severity is Severity.INFO:
        return False
    if not lead.mechanism:
        begun = lead.first_step <= max(other.detected_step, other.first_step)
        lasting = not lead.details.get("recovered")
        return begun and lasting and not other.mechanism and other.what in _BROUGHT_ABOUT.get(lead.what, ())
    return other.what in lead.explains and (lead.static or lead.first_step <= other.first_step)


def _noticed_first(violation: Violation) -> tuple[int, int, int, int]:
    """Damage to the numbers is noticed before a bad end, the graver before the lighter, and a mechanism by nobody."""
    return violation.mechanism, violation.what in ENDINGS, _RANKING[violation.severity], violation.first_step


def _fix_first(incident: Incident) -> tuple[int, int, float, int]:
    lead = incident.lead
    return _RANKING[incident.severity], not lead.mechanism, -lead.certainty if lead.mechanism else 0.0, lead.first_step
