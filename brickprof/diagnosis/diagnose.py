"""One pass over a run: rules judge, causes are weighed, incidents become findings.

Enters: a ``Run`` (or records fed one at a time, for a run that goes on). Leaves: a ``Diagnosis``, its
findings in the order in which to fix them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from brickprof import plugins
from brickprof.bricks import Coordinates
from brickprof.contracts.verdicts import Severity, Verdict, Violation, overall
from brickprof.diagnosis import summary, whys
from brickprof.diagnosis.hypotheses import Hypothesis, best
from brickprof.diagnosis.model import Diagnosis, Finding
from brickprof.diagnosis.timeline import Timeline
from brickprof.records import Record
from brickprof.rules.engine import Engine

if TYPE_CHECKING:
    from brickprof.run import Run

_RANKING = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def diagnose(run: Run) -> Diagnosis:
    """What became of ``run``."""
    doctor = Doctor()
    for record in run.records():
        doctor.feed(record)
    return doctor.diagnosis(run)


class Doctor:
    """Takes records as they come; a diagnosis can be asked for at any time."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.timeline = Timeline()

    def feed(self, record: Record) -> None:
        self.engine.feed(record)
        self.timeline.feed(record)

    def diagnosis(self, run: Run | None = None) -> Diagnosis:
        results = self.engine.results(run)
        violations = _incidents([violation for result in results for violation in result.violations])
        findings = [self._finding(place, *found) for place, found in enumerate(violations, start=1)]
        contracts = tuple(replace(result, violations=()) for result in results if result.id)
        verdict = overall(result.verdict for result in contracts)
        if any(finding.severity is Severity.ERROR for finding in findings):
            verdict = Verdict.FAIL
        about = summary.about(run, self.timeline, results)
        if self.engine.notes:
            about["notes"] = list(self.engine.notes)
        return Diagnosis(verdict, about, tuple(findings), contracts)

    def _finding(self, place: int, violation: Violation, after: str) -> Finding:
        hypotheses = _hypotheses(violation, self.timeline)
        cause = best(hypotheses)
        ruled_out = [out for other in hypotheses if other is not cause and (out := other.ruled_out())]
        broken = violation.severity is not Severity.INFO
        return Finding(
            id=f"F{place}",
            contract=violation.contract,
            verdict=Verdict.FAIL if broken else Verdict.PASS,
            severity=violation.severity,
            root_cause=cause.root_cause if cause else "undetermined",
            confidence=cause.confidence if cause else 0.0,
            brick=violation.brick,
            granularity=violation.granularity,
            scope=_scope(violation),
            nature="static" if violation.what == "no-gradient" else "dynamic",
            first_step=violation.first_step,
            detected_step=violation.detected_step,
            coordinates=self.timeline.coordinates.get(violation.rank, Coordinates().to_dict()),
            symptom=f"{violation.symptom}; {after}" if after else violation.symptom,
            whys=whys.chain(violation, cause, self.timeline),
            ruled_out=tuple(ruled_out),
            action=cause.action if cause else "",
            next_experiment=cause.next_experiment if cause else "",
        )


def _hypotheses(violation: Violation, timeline: Timeline) -> list[Hypothesis]:
    found: list[Hypothesis] = []
    for propose in plugins.discover("brickprof.diagnosis.causes").exports("hypotheses").values():
        found += propose(violation, timeline)
    return found


def _incidents(violations: Iterable[Violation]) -> list[tuple[Violation, str]]:
    """Each incident once, the one to fix first on top, with what followed from it in words."""
    ordered = sorted(violations, key=lambda violation: (_RANKING[violation.severity], violation.first_step))
    broken = next((v for v in ordered if v.what == "nonfinite" and not v.details.get("recovered")), None)
    incidents: list[tuple[Violation, str]] = []
    follows = ""
    for violation in ordered:
        if broken is not None and violation is not broken and _follows(violation, broken):
            follows = violation.symptom if violation.what == "crashed" else follows
        else:
            incidents.append((violation, ""))
    return [(v, f"then {follows}" if v is broken and follows else after) for v, after in incidents]


def _follows(violation: Violation, broken: Violation) -> bool:
    """An exception, or a non-zero exit, after the numbers broke for good is their consequence."""
    stopped = violation.what in ("crashed", "exited")
    return stopped and violation.detected_step >= broken.first_step


def _scope(violation: Violation) -> str:
    if violation.what == "nonfinite":
        return "local" if violation.details.get("recovered") else "global"
    return "local" if violation.brick else "global"
