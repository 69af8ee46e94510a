"""One pass over a run: rules judge, causes are weighed, incidents become findings.

Enters: a ``Run`` (or records fed one at a time, for a run that goes on). Leaves: a ``Diagnosis``, its
findings in the order in which to fix them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof import plugins
from brickprof.bricks import Coordinates
from brickprof.contracts.terms import Terms
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict, Violation, overall
from brickprof.diagnosis import summary, whys
from brickprof.diagnosis.budget_facts import budget_facts
from brickprof.diagnosis.card_facts import card_facts
from brickprof.diagnosis.case import Case
from brickprof.diagnosis.course_facts import course_facts
from brickprof.diagnosis.fallback_facts import fallback_facts
from brickprof.diagnosis.hypotheses import Hypothesis, best
from brickprof.diagnosis.incidents import Incident, incidents
from brickprof.diagnosis.model import Diagnosis, Finding
from brickprof.diagnosis.proposals import obligation
from brickprof.diagnosis.time_facts import time_facts
from brickprof.diagnosis.timeline import Timeline
from brickprof.diagnosis.transfer_facts import transfer_facts
from brickprof.records import Record
from brickprof.rules import again
from brickprof.rules.engine import Engine, batches
from brickprof.rules.many import Many
from brickprof.rules.story import Story, loading

if TYPE_CHECKING:
    from brickprof.run import Run

_SURE = 0.7
_MOST_OBLIGED = 3
_NUMBERS = frozenset({"nonfinite", "exploding", "diverged", "spike", "no-gradient", "not-learning", "oscillation"})
"""What a close look at the numbers of one step says more about."""
_FOR_LOGS = ("logged",)
"""Causes that only a log tells of: a run that was captured does not wait for what reads logs."""


def diagnose(run: Run, terms: Terms | None = None) -> Diagnosis:
    """What became of ``run``, on the terms it was started with unless others are given."""
    with _uncollected():
        doctor = Doctor(terms or Terms.recorded(run.meta.extra))
        doctor.read(run)
        return doctor.diagnosis(run)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles in garbage: records by the ten thousand hold none, and each look is over them all."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Doctor:
    """Takes records as they come; a diagnosis can be asked for at any time."""

    def __init__(self, terms: Terms | None = None) -> None:
        self.engine = Engine(terms=terms)
        self.timeline = Timeline()

    def feed(self, record: Record) -> None:
        self.engine.feed(record)
        self.timeline.feed(record)

    def read(self, run: Run) -> None:
        """A whole run: its columns at once, its records only where their order counts."""
        story = self.engine.story = Story()
        rest = loading.load_events(story, run)
        if run.on_its_way:
            with np.errstate(all="ignore"):
                self.engine.judge_early()
        loading.load_rest(story, rest)
        for records in batches(run.records(thinned=True, telling=self.engine.telling)):
            many = Many(records)
            self.engine.hear(many)
            self.timeline.follow(many)

    @np.errstate(all="ignore")  # a run may hold any numbers: what overflows is infinite, and says so
    def diagnosis(self, run: Run | None = None) -> Diagnosis:
        results = self.engine.results(run)
        violations = tuple(violation for result in results for violation in result.violations)
        case = Case(self.engine.story, self.timeline, violations)
        findings = [self._finding(place, found, case) for place, found in enumerate(incidents(violations), start=1)]
        findings = self._obliged(findings, results)
        contracts = tuple(replace(result, violations=(), aside=False) for result in results if result.id)
        verdict = overall(result.verdict for result in contracts)
        if verdict is Verdict.PASS and not (self.engine.story.trained or _speaks_of_training(self.engine.story)):
            verdict = Verdict.VACUOUS  # a process that came to a good end is no training that held
        if any(finding.severity is Severity.ERROR for finding in findings):
            verdict = Verdict.FAIL
        about = summary.about(run, self.timeline, results) | card_facts(self.engine.story)
        about |= transfer_facts(self.engine.story) | _log_facts(self.engine.story) | fallback_facts(self.engine.story)
        if run is not None:
            about |= course_facts(self.engine.story) | time_facts(run) | budget_facts(run, self.engine.story)
            about |= {"ended": False} if self._unfinished() else {}
        if self.engine.notes:
            about["notes"] = list(self.engine.notes)
        return Diagnosis(verdict, about, tuple(findings), contracts)

    def _unfinished(self) -> bool:
        """Whether it was seen to begin and not to end: it goes on, or was killed together with who watched it."""
        story = self.engine.story
        began = [event for rank in story.ranks for event in story.events("run", rank)] + story.events("start", -1)
        return any("pid" in event.fields for event in began) and self.timeline.ended is None and not self.timeline.exits

    def _hypotheses(self, violation: Violation, case: Case) -> list[Hypothesis]:
        """What each family of causes has to say; one that fails says so and is left out."""
        found: list[Hypothesis] = []
        leave_out = () if case.story.logged else _FOR_LOGS
        families = plugins.discover("brickprof.diagnosis.causes", leave_out=leave_out)
        for name, propose in families.exports("hypotheses").items():
            try:
                found += propose(violation, case)
            except Exception as error:
                note = f"the causes of {name} could not be weighed: {type(error).__name__}: {error}"
                self.engine.notes = tuple(dict.fromkeys((*self.engine.notes, note)))
        return found

    def _finding(self, place: int, incident: Incident, case: Case) -> Finding:
        lead = incident.lead
        hypotheses = self._hypotheses(lead, case)
        cause = best(hypotheses)
        ruled_out = [out for other in hypotheses if other is not cause and (out := other.ruled_out())]
        together = (lead, *incident.symptoms)
        return Finding(
            id=f"F{place}",
            contract=lead.contract,
            verdict=Verdict.FAIL if incident.severity is not Severity.INFO else Verdict.PASS,
            severity=incident.severity,
            root_cause=cause.root_cause if cause else "undetermined",
            confidence=cause.confidence if cause else 0.0,
            brick=_place(cause, together),
            granularity=lead.granularity,
            scope=_scope(lead),
            nature="static" if lead.static or lead.what == "no-gradient" else "dynamic",
            first_step=lead.first_step,
            detected_step=min(violation.detected_step for violation in together),
            coordinates=self._coordinates(lead.rank),
            symptom=_symptom(incident),
            whys=whys.chain(incident, cause, self.timeline),
            ruled_out=tuple(ruled_out),
            action=cause.action if cause else lead.action,
            next_experiment=_experiment(lead, cause, case),
            follows=tuple(v.symptom for v in incident.symptoms if v is not incident.seen),
        )

    def _obliged(self, findings: list[Finding], results: list[ContractResult]) -> list[Finding]:
        """The first findings with what would have caught them."""
        others = {result.id: result for result in results}
        told: list[Finding] = []
        for finding in findings:
            if len(told) < _MOST_OBLIGED and finding.severity is not Severity.INFO and not self.engine.story.logged:
                try:
                    finding = replace(finding, obligation=obligation(finding, self.engine.story, others))
                except Exception as error:
                    note = f"what would have caught {finding.id} could not be said: {type(error).__name__}: {error}"
                    self.engine.notes = tuple(dict.fromkeys((*self.engine.notes, note)))
            told.append(finding)
        return told

    def _coordinates(self, rank: int) -> dict[str, int]:
        """Where it was seen; of a log that several ranks speak in, the flat rank is all there is."""
        told = self.timeline.coordinates.get(rank)
        if told is None and self.engine.story.logged and len(self.engine.story.ranks) > 1:
            return {"rank": rank}
        return told or Coordinates().to_dict()


def _log_facts(story: Story) -> dict[str, Any]:
    if not story.logged:
        return {}
    from brickprof.diagnosis.log_facts import log_facts

    return log_facts(story)


def _speaks_of_training(story: Story) -> bool:
    if not story.logged:
        return False
    from brickprof.diagnosis.log_facts import speaks_of_training

    return speaks_of_training(story)


def _experiment(lead: Violation, cause: Hypothesis | None, case: Case) -> str:
    """What would decide: where records are missing, the same run with a close look at the step in question."""
    if cause is not None and not cause.missing and cause.confidence >= _SURE:
        return cause.next_experiment
    if lead.static or lead.what not in _NUMBERS:
        return cause.next_experiment if cause else ""
    return again.looking_at(case.story, lead.rank, lead.first_step)


def _place(cause: Hypothesis | None, together: tuple[Violation, ...]) -> str:
    if cause is not None and cause.brick:
        return cause.brick
    return next((violation.brick for violation in together if violation.brick), "")


def _symptom(incident: Incident) -> str:
    """What was seen, and how it ended if that was its end."""
    seen = incident.seen
    ending = next((v for v in incident.symptoms if v.what == "crashed" and v is not seen), None)
    return f"{seen.symptom}; then {ending.symptom}" if ending is not None else seen.symptom


def _scope(violation: Violation) -> str:
    if violation.what == "nonfinite":
        return "local" if violation.details.get("recovered") else "global"
    return "local" if violation.brick else "global"
