"""A diagnosis as SARIF 2.1.0: contracts are the rules, findings the results; for code scanning.

Enters: a ``Diagnosis``, and its ``Run`` for the places. Leaves: one SARIF log in ASCII. Each result stands at the file
and line that its evidence names; where none does, at the script (line 1), since GitHub refuses a whole upload for one
result without a file. ``properties.located_by`` says which of the two it is, and the brick is a logical location.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from brickprof import __version__
from brickprof.contracts import own, registry
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.reports import plain
from brickprof.reports.places import Places
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.contracts.schema import Contract
    from brickprof.diagnosis.model import Diagnosis, Finding
    from brickprof.reports.places import Place
    from brickprof.run import Run

NAME, SUFFIX = "sarif", ".sarif"
NEEDS_RUN = True
ENDINGS = (".sarif.json",)
"""Other endings of a file that mean this report."""
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_ROOT = "%SRCROOT%"
"""The checkout, wherever it lies: an absolute base would be that of the machine that trained."""
_PLACEHOLDER = re.compile(r"\{(\d+)\}")
_RULE = re.compile(r"[^A-Za-z0-9._/-]+")


def text(diagnosis: Diagnosis, run: Run | None = None) -> str:
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(diagnosis, run)]}
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def render(diagnosis: Diagnosis, console: Console, run: Run | None = None) -> None:
    # Past the console's own layout: JSON must not be wrapped or styled.
    console.file.write(text(diagnosis, run))


def _run(diagnosis: Diagnosis, run: Run | None) -> dict[str, Any]:
    places, known = Places(diagnosis, run), _contracts(run)
    names = dict.fromkeys(
        [_rule_id(contract.id) for contract in diagnosis.contracts] + [rule_of(each) for each in diagnosis.findings]
    )
    rules = list(names)
    return {
        "tool": {
            "driver": {
                "name": "brickprof",
                "version": __version__,
                "rules": [_rule(name, known.get(name)) for name in rules],
            }
        },
        "invocations": [_invocation(diagnosis)],
        "columnKind": "unicodeCodePoints",
        "results": _results(diagnosis, places, rules),
        "properties": _properties(diagnosis),
    }


def _invocation(diagnosis: Diagnosis) -> dict[str, Any]:
    """That we judged; where nothing could be judged, a warning that says so: no result is no pass."""
    made: dict[str, Any] = {"executionSuccessful": True}
    if diagnosis.verdict not in (Verdict.PASS, Verdict.FAIL):
        said = message(plain.headline(diagnosis))
        made["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": said}}]
    return made


def _properties(diagnosis: Diagnosis) -> dict[str, Any]:
    of = Counter(contract.verdict.value for contract in diagnosis.contracts)
    return {
        "run": clean(diagnosis.run.get("id") or ""), "verdict": diagnosis.verdict.value,
        "steps": int(diagnosis.run.get("steps") or 0), "contracts": {name: of[name] for name in sorted(of)},
        "not_judged": plain.unjudged(diagnosis),
    }  # fmt: skip


# -- rules


def rule_of(finding: Finding) -> str:
    """The rule that a finding breaks: its contract, or its cause where it has none."""
    return _rule_id(finding.contract or finding.root_cause)


def _rule_id(foreign: str) -> str:
    return _RULE.sub("-", clean(foreign, limit=120)).strip("-") or "undetermined"


def _contracts(run: Run | None) -> dict[str, Contract]:
    """Ours, and the user's own that the run was started with."""
    return registry.library() | (own.recorded(run.meta.extra.get("contracts")) if run is not None else {})


def _rule(name: str, known: Contract | None) -> dict[str, Any]:
    short = known.metadata.description if known is not None else words(name)
    why = known.motivation if known is not None else short
    return {
        "id": name,
        "shortDescription": {"text": message(short)},
        "fullDescription": {"text": message(why, limit=1_000)},
        "help": {"text": message(_help(name, known), limit=4_000, one_line=False)},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["training"]},
    }


def _help(name: str, contract: Contract | None) -> str:
    if contract is None:
        return f"{words(name)}. The result says what was seen and what to do."
    lines = [contract.metadata.description, "", contract.motivation, "", "What has to hold:"]
    lines += [f"- {obligation.property}" for obligation in contract.obligations]
    for head, listed in (("Always:", contract.anti_pattern.always), ("Never:", contract.anti_pattern.never)):
        lines += ["", head, *(f"- {each}" for each in listed)] if listed else []
    return "\n".join(lines)


# -- results


def _results(diagnosis: Diagnosis, places: Places, rules: list[str]) -> list[dict[str, Any]]:
    results, seen = [], Counter[str]()
    for finding in diagnosis.findings:
        place = places.of(finding)
        mark = fingerprint(finding, place)
        seen[mark] += 1
        rule = rule_of(finding)
        results.append({
            "ruleId": rule,
            "ruleIndex": rules.index(rule),
            "level": _LEVELS[finding.severity],
            "message": {"text": message("\n".join(plain.told(finding)), limit=8_000, one_line=False)},
            "locations": _locations(finding, place),
            "partialFingerprints": {"primaryLocationLineHash": f"{mark}:{seen[mark]}", "brickprof/v1": mark},
            "properties": _about(finding, place),
        })  # fmt: skip
    return results


def fingerprint(finding: Finding, place: Place | None) -> str:
    """The same for the same fault in another run: of what broke and where, not of steps, lines or numbers."""
    file = place.file if place is not None and place.inside else ""
    parts = (finding.contract, finding.root_cause, finding.brick, file)
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _locations(finding: Finding, place: Place | None) -> list[dict[str, Any]]:
    made: dict[str, Any] = {}
    if place is not None:
        where: dict[str, str] = {"uri": _quoted(place.file) if place.inside else f"file://{_quoted(place.file)}"}
        if place.inside:
            where["uriBaseId"] = _ROOT
        made["physicalLocation"] = {"artifactLocation": where, "region": {"startLine": max(place.line, 1)}}
    if finding.brick:
        name = clean(finding.brick, limit=200)
        kind = clean(finding.granularity, limit=40) or "block"
        made["logicalLocations"] = [{"name": name, "fullyQualifiedName": name, "kind": kind}]
    return [made] if made else []


def _quoted(path: str) -> str:
    return quote(path.encode("utf-8", "backslashreplace"))


def _about(finding: Finding, place: Place | None) -> dict[str, Any]:
    return {
        "finding": clean(finding.id, limit=40), "verdict": finding.verdict.value,
        "root_cause": clean(finding.root_cause, limit=120), "confidence": round(finding.confidence, 4),
        "first_step": finding.first_step, "detected_step": finding.detected_step,
        "nature": clean(finding.nature, limit=40), "scope": clean(finding.scope, limit=40),
        "whys": [
            {"question": clean(why.question), "finding": clean(why.finding), "brick": clean(why.brick),
             "evidence": [clean(identity, limit=200) for identity in why.evidence]}
            for why in finding.whys
        ],
        "action": clean(finding.action), "located_by": place.by if place is not None else "nothing",
    }  # fmt: skip


def message(foreign: str, *, limit: int = 400, one_line: bool = True) -> str:
    """``foreign`` as a message's text: what would be read as a link or as a place for an argument is neither."""
    shown = clean(foreign, limit=limit, one_line=one_line)
    if "](" in shown:
        shown = shown.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    return _PLACEHOLDER.sub(r"{{\1}}", shown)


REPORT = render
