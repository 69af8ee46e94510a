"""One incident, one finding: what follows from a cause is told under it and not beside it.

Enters: every violation of a run. Leaves: incidents, the one to fix first on top. A mechanism leads the symptoms that it
explains and that began no earlier; a symptom without a mechanism leads itself, and what it brings about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from brickprof.contracts.verdicts import Severity, Violation
from brickprof.rules.obligations import WHAT as OBLIGATION

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
_RUNNING_AWAY = frozenset({"update-size"})
"""Seen on the way from a cause to damage: whatever explains the damage explains them too."""
_RUNS_AWAY = frozenset({"spike", "diverged", "exploding"})
_ONLY_SLOW = frozenset({
    "loader-bound", "launch-storm", "straggler", "extra-transfers", "host-sync-in-loop", "low-utilisation", "throttled",
    "over-budget",
})  # fmt: skip
_SHORTLY = 16
_DAMAGE = frozenset({"nonfinite", "diverged"})


@dataclass(slots=True)
class Incident:
    lead: Violation
    symptoms: list[Violation] = field(default_factory=list)

    @property
    def seen(self) -> Violation:
        """What a person would notice first."""
        noticed = self.symptoms[0] if self.symptoms and self.lead.mechanism else self.lead
        return self.lead if noticed.what == OBLIGATION else noticed

    @property
    def severity(self) -> Severity:
        return min((v.severity for v in (self.lead, *self.symptoms)), key=_RANKING.__getitem__)


def incidents(violations: Iterable[Violation]) -> list[Incident]:
    ordered = sorted(violations, key=_leads_first)
    found = {id(violation): Incident(violation) for violation in ordered if _root(violation, ordered) is violation}
    for violation in ordered:
        root = _root(violation, ordered)
        if root is not violation:
            found[id(root)].symptoms.append(violation)
    for incident in found.values():
        incident.symptoms.sort(key=_noticed_first)
    damage = min((one.first_step for one in (each.lead for each in found.values()) if _is_damage(one)), default=None)
    return sorted(found.values(), key=lambda incident: _fix_first(incident, damage))


def _leads_first(violation: Violation) -> tuple[int, float, int, int, int]:
    """Mechanisms before symptoms; the more certain, the graver, what brings more about, the earlier."""
    return (
        not violation.mechanism, -violation.certainty if violation.mechanism else 0.0, _RANKING[violation.severity],
        -len(_BROUGHT_ABOUT.get(violation.what, ())), violation.first_step,
    )  # fmt: skip


def _root(violation: Violation, ordered: list[Violation]) -> Violation:
    """The violation at the end of the chain of explanations: itself where nothing explains it."""
    seen = {id(violation)}
    while (leader := _leader(violation, ordered)) is not None and id(leader) not in seen:
        seen.add(id(leader))
        violation = leader
    return violation


def _leader(violation: Violation, ordered: list[Violation]) -> Violation | None:
    """The first, in the order of leading, that explains ``violation``; of two that explain each other, the earlier."""
    if violation.severity is Severity.INFO:
        return None
    for place, other in enumerate(ordered):
        if other is violation or not _explains(other, violation):
            continue
        if _explains(violation, other) and ordered.index(violation) < place:
            continue
        return other
    return None


def _explains(lead: Violation, other: Violation) -> bool:
    if lead.severity is Severity.INFO:
        return False
    if OBLIGATION in (lead.what, other.what):
        return lead.what != OBLIGATION and lead.contract in other.details.get("about", ())
    if not lead.mechanism:
        begun = lead.first_step <= max(other.detected_step, other.first_step) or _led_up_to(other, lead)
        lasting = not lead.details.get("recovered")
        return begun and lasting and not other.mechanism and other.what in _BROUGHT_ABOUT.get(lead.what, ())
    explained = other.what in lead.explains or (other.what in _RUNNING_AWAY and bool(_DAMAGE & lead.explains))
    return explained and lead.what != other.what and (lead.static or lead.first_step <= other.first_step)


def _led_up_to(other: Violation, lead: Violation) -> bool:
    """Numbers that run away and then are no numbers any more: one thing, seen early and late."""
    shortly = lead.first_step - other.first_step <= _SHORTLY
    return lead.what == "nonfinite" and other.what in _RUNS_AWAY and shortly


def _noticed_first(violation: Violation) -> tuple[int, int, int, int]:
    """Damage to the numbers is noticed before a bad end, the graver before the lighter, and a mechanism by nobody."""
    late = violation.mechanism or violation.what == OBLIGATION
    return late, violation.what in ENDINGS, _RANKING[violation.severity], violation.first_step


def _is_damage(violation: Violation) -> bool:
    """Numbers that ran away, by a cause that nobody named."""
    what = violation.what in _RUNS_AWAY or violation.what == "nonfinite"
    return what and not violation.mechanism and violation.severity is not Severity.INFO


def _fix_first(incident: Incident, damage: int | None) -> tuple[int, int, int, int, float, int]:
    """The graver first; a run that learns slowly is worth more than a fast one that learns nothing.

    A mechanism that began after the numbers had run away did not make them: it is probably part of what they left.
    """
    lead = incident.lead
    after = lead.mechanism and not lead.static and damage is not None and lead.first_step > damage
    return (
        _RANKING[incident.severity], lead.what in _ONLY_SLOW, after, not lead.mechanism,
        -lead.certainty if lead.mechanism else 0.0, lead.first_step,
    )  # fmt: skip
