"""A diagnosis as JUnit XML: a suite for the run, a test case for each contract.

Enters: a ``Diagnosis``, and its ``Run`` for the places and the time of its start. Leaves: XML 1.0 in the shape that
Jenkins, GitLab and pytest share. A broken contract is a failure with the whys as its text; what was not evaluated, or
had nothing to judge, is skipped and says why. A run of which nothing could be judged is an error, never a row of green.
"""

from __future__ import annotations

import re
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as xml

from brickprof import __version__
from brickprof.contracts.verdicts import ContractResult, Severity, Verdict
from brickprof.reports import plain
from brickprof.reports.places import EVIDENCE, Places
from brickprof.text import clean, file_name

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis, Finding
    from brickprof.run import Run

NAME, SUFFIX = "junit", ".xml"
NEEDS_RUN = True
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST = 20_000


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: a contract, or a finding that belongs to none of those listed."""

    name: str
    outcome: str = ""
    """failure, error or skipped; empty when it passed."""
    type: str = ""
    message: str = ""
    text: str = ""
    output: str = ""


def text(diagnosis: Diagnosis, run: Run | None = None) -> str:
    root = xml.Element("testsuites", {"name": "brickprof"})
    cases = _cases(diagnosis, Places(diagnosis, run))
    suite = xml.SubElement(root, "testsuite", _attributes(diagnosis, run, cases))
    for name in ("tests", "failures", "errors", "skipped", "time"):
        root.set(name, suite.attrib[name])
    properties = xml.SubElement(suite, "properties")
    for name, value in _properties(diagnosis, run).items():
        xml.SubElement(properties, "property", {"name": name, "value": legal(value)})
    owner = f"brickprof.{file_name(plain.name(diagnosis).removesuffix('.py'), limit=80)}"
    for case in cases:
        _append(suite, case, owner)
    xml.SubElement(suite, "system-out").text = legal(_said(diagnosis))
    xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{xml.tostring(root, encoding="unicode")}\n'


def render(diagnosis: Diagnosis, console: Console, run: Run | None = None) -> None:
    # Past the console's own layout: XML must not be wrapped or styled.
    console.file.write(text(diagnosis, run))


def legal(foreign: object) -> str:
    """``foreign`` without what XML 1.0 cannot hold, not even escaped: it is shown as an escape of ours."""
    return _ILLEGAL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(foreign))


# -- the suite


def _attributes(diagnosis: Diagnosis, run: Run | None, cases: list[Case]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    seconds = (diagnosis.run.get("exit") or {}).get("seconds")
    counted = {"tests": len(cases), "failures": outcomes.count("failure"), "errors": outcomes.count("error")}
    about = {
        "name": legal(plain.name(diagnosis)),
        **{name: str(value) for name, value in counted.items()},
        "skipped": str(outcomes.count("skipped")),
        "time": f"{seconds:.3f}" if isinstance(seconds, (int, float)) else "0.000",
    }
    if run is not None and (started := _date(run.meta.started_ns)):
        about["timestamp"] = started
    if run is not None and run.meta.host:
        about["hostname"] = legal(clean(run.meta.host, limit=200))
    return about


def _date(unix_ns: int) -> str:
    """Empty where it is not known, or is beyond any calendar."""
    with suppress(OSError, OverflowError, ValueError):
        return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S}" if unix_ns > 0 else ""
    return ""


def _properties(diagnosis: Diagnosis, run: Run | None) -> dict[str, str]:
    facts = diagnosis.run
    told = {
        "run": facts.get("id"), "verdict": diagnosis.verdict.value, "steps": facts.get("steps"),
        "ranks": facts.get("ranks"), "script": facts.get("script"), "source": facts.get("source"),
        "folder": facts.get("folder"), "version": __version__,
        "recorded_with": run.meta.version if run is not None else None,
    }  # fmt: skip
    return {name: clean(value) for name, value in told.items() if value not in (None, "")}


def _append(suite: xml.Element, case: Case, owner: str) -> None:
    made = xml.SubElement(suite, "testcase", {"classname": owner, "name": legal(case.name), "time": "0.000"})
    if case.outcome:
        told = {"message": legal(case.message)} | ({"type": legal(case.type)} if case.type else {})
        xml.SubElement(made, case.outcome, told).text = legal(case.text) or None
    if case.output:
        xml.SubElement(made, "system-out").text = legal(case.output)


def _said(diagnosis: Diagnosis) -> str:
    """The verdict, and what is worth a note and breaks nothing."""
    notes = [each for each in diagnosis.findings if each.severity is Severity.INFO]
    lines = [plain.headline(diagnosis), plain.counts(diagnosis), *(f"Note: {clean(each.symptom)}" for each in notes)]
    return "\n".join(lines)[:_LONGEST]


# -- the cases


def _cases(diagnosis: Diagnosis, places: Places) -> list[Case]:
    broken = [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]
    cases = [_of_contract(contract, broken, places) for contract in diagnosis.contracts]
    shown = {case.name for case in cases if case.outcome == "failure"}
    stray: dict[str, list[Finding]] = {}
    for finding in broken:
        name = clean(finding.contract or finding.root_cause, limit=120)
        if name not in shown:
            stray.setdefault(name, []).append(finding)
    cases += [_failed(name, findings, places) for name, findings in stray.items()]
    if diagnosis.verdict in (Verdict.VACUOUS, Verdict.NOT_EVALUATED):
        said = plain.headline(diagnosis)
        cases.append(Case("verdict", "error", diagnosis.verdict.value, said, "Nothing was judged: this is no pass."))
    return cases


def _of_contract(contract: ContractResult, broken: list[Finding], places: Places) -> Case:
    name = clean(contract.id, limit=120)
    if contract.verdict is Verdict.PASS:
        return Case(name, output=_measured(contract))
    if contract.verdict is not Verdict.FAIL:
        reason = clean(contract.why or contract.observed or contract.verdict.value)
        return Case(name, "skipped", contract.verdict.value, f"{contract.verdict.value}: {reason}")
    own = [finding for finding in broken if finding.contract == contract.id]
    if own:
        return _failed(name, own, places, _measured(contract, {finding.symptom for finding in own}))
    said = clean(contract.why or contract.observed or "broken")
    first = f"The finding to fix first: {clean(broken[0].symptom)}" if broken else ""
    return Case(name, "failure", "FAIL", said, "\n".join(part for part in (_measured(contract), first) if part))


def _failed(name: str, findings: list[Finding], places: Places, measured: str = "") -> Case:
    parts = []
    for finding in findings:
        place = places.of(finding)
        at = [f"At: {clean(place.file)}:{place.line}"] if place is not None and place.by == EVIDENCE else []
        parts.append("\n".join([*plain.told(finding), *at]))
    told = "\n\n".join([*parts, measured] if measured else parts)
    message = "; ".join(clean(finding.symptom) for finding in findings)
    return Case(name, "failure", clean(findings[0].root_cause, limit=120), clean(message, limit=800), told[:_LONGEST])


def _measured(contract: ContractResult, said: Container[str] = ()) -> str:
    """What was measured, without what has been ``said`` already."""
    told = (("Observed", contract.observed), ("Threshold", contract.threshold), ("Why", contract.why))
    return "\n".join(f"{label}: {clean(value)}" for label, value in told if value and value not in said)


REPORT = render
