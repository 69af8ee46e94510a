"""What the diagnosis found, at its moment: for traces that mark it.

Enters: a run. Leaves: its findings, each with the time at which its first step was first heard of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.telemetry.window import Window

if TYPE_CHECKING:
    from brickprof.diagnosis import Diagnosis, Finding
    from brickprof.run import Run

_NAMING = frozenset({"run", "brick", "tensor", "model"})
"""Events that stand at step 0 whenever they were written."""


def diagnosis_of(run: Run) -> Diagnosis:
    """What is wrong with the run, the whole of it also where only some of its steps are written."""
    from brickprof.diagnosis import diagnosed

    return diagnosed(run.whole if isinstance(run, Window) else run)


def placed(run: Run) -> list[tuple[int, Finding]]:
    """Findings by time. One of a step that nobody heard of stands at the beginning; in a window it is left out."""
    found = diagnosis_of(run).findings
    times = _moments(run, {finding.first_step for finding in found})
    usual = None if isinstance(run, Window) else _beginning(run)
    moments = [(times.get(finding.first_step, usual), finding) for finding in found]
    return sorted(((at, finding) for at, finding in moments if at is not None), key=lambda each: each[0])


def told(finding: Finding) -> dict[str, Any]:
    """The facts of a finding that a mark in a trace carries."""
    return {
        "id": finding.id, "severity": str(finding.severity), "contract": finding.contract,
        "cause": finding.root_cause, "confidence": finding.confidence, "brick": finding.brick,
        "step": finding.first_step, "symptom": finding.symptom, "action": finding.action,
    }  # fmt: skip


def _moments(run: Run, steps: set[int]) -> dict[int, int]:
    """When each of ``steps`` was first heard of."""
    found: dict[int, int] = {}
    for part in run.parts:
        for event in part.events if part.rank >= 0 else ():
            if event.step in steps and event.time_ns and event.kind not in _NAMING:
                found[event.step] = min(found.get(event.step, event.time_ns), event.time_ns)
    return found


def _beginning(run: Run) -> int | None:
    return min((event.time_ns for part in run.parts for event in part.events if event.time_ns), default=None)
