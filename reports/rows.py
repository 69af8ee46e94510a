"""Findings and contracts as rows of a table: what CSV and Parquet hold.

Enters: a ``Diagnosis``, and its ``Run`` for the places. Leaves: a dict for each row, with the same keys in each; the
first say which run it is, so that tables of many runs can be put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brickprof.reports import plain
from brickprof.reports.places import EVIDENCE, Places
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis, Finding
    from brickprof.run import Run

RUN = ("run", "name", "run_verdict", "steps")
FINDING = (
    *RUN, "finding", "contract", "verdict", "severity", "root_cause", "confidence", "brick", "granularity", "scope",
    "nature", "first_step", "detected_step", "coordinates", "file", "line", "symptom", "whys", "evidence", "ruled_out",
    "action", "next_experiment", "follows", "obligation",
)  # fmt: skip
CONTRACT = (*RUN, "contract", "verdict", "observed", "threshold", "why")
_LONGEST = 4_000


def findings(diagnosis: Diagnosis, run: Run | None) -> list[dict[str, Any]]:
    places = Places(diagnosis, run)
    return [_about(diagnosis) | _finding(finding, places) for finding in diagnosis.findings]


def contracts(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    return [
        _about(diagnosis) | {
            "contract": _text(contract.id), "verdict": contract.verdict.value, "observed": _text(contract.observed),
            "threshold": _text(contract.threshold), "why": _text(contract.why),
        }
        for contract in diagnosis.contracts
    ]  # fmt: skip


def _about(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "run": _text(diagnosis.run.get("id") or ""), "name": plain.name(diagnosis),
        "run_verdict": diagnosis.verdict.value, "steps": int(diagnosis.run.get("steps") or 0),
    }  # fmt: skip


def _finding(finding: Finding, places: Places) -> dict[str, Any]:
    place = places.of(finding)
    at = place if place is not None and place.by == EVIDENCE else None
    named = ("contract", "root_cause", "brick", "granularity", "scope", "nature", "symptom", "action")
    return {
        "finding": _text(finding.id), "verdict": finding.verdict.value, "severity": finding.severity.value,
        "confidence": float(finding.confidence), "first_step": finding.first_step,
        "detected_step": finding.detected_step,
        **{name: _text(getattr(finding, name)) for name in named},
        "next_experiment": _text(finding.next_experiment), "obligation": _text(finding.obligation),
        "coordinates": {
            _text(name): value for name, value in finding.coordinates.items() if isinstance(value, int)
        },
        "file": _text(at.file) if at is not None else "", "line": at.line if at is not None else None,
        "whys": [
            {"question": _text(why.question), "finding": _text(why.finding), "brick": _text(why.brick),
             "evidence": [_text(identity) for identity in why.evidence]}
            for why in finding.whys
        ],
        "evidence": list(dict.fromkeys(_text(identity) for why in finding.whys for identity in why.evidence)),
        "ruled_out": [
            {"root_cause": _text(each.root_cause), "because": _text(each.because)} for each in finding.ruled_out
        ],
        "follows": [_text(what) for what in finding.follows],
    }  # fmt: skip


def _text(foreign: object) -> str:
    return clean(foreign, limit=_LONGEST)
