"""A finding in plain words: what, where, cause, the whys, what to do; for reports that have no layout of their own.

Enters: a ``Diagnosis`` or a ``Finding``. Leaves: lines of text, every foreign string of them cleaned and shortened.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.reports import terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis, Finding, Why

_EVIDENCE_SHOWN = 3


def headline(diagnosis: Diagnosis) -> str:
    """The verdict and what it comes to, in one line: the first of the terminal's report."""
    line = terminal.text(diagnosis).split("\n", 1)[0]
    mark, _, rest = line.partition("  ")
    return f"{mark.lstrip('✓✗○ ')}: {rest.partition('    ')[0]}".rstrip(": ")


def name(diagnosis: Diagnosis) -> str:
    """What people call this run: its script or its log, without folders."""
    told = str(diagnosis.run.get("script") or diagnosis.run.get("id") or "run")
    return clean(told.replace("\\", "/").rpartition("/")[2] or told, limit=120)


def told(finding: Finding) -> list[str]:
    """The finding, a line for each thing that is to be said of it; what was seen is the first."""
    lines = [f"{clean(finding.symptom)} ({clean(finding.id, limit=40)})"]
    if finding.brick:
        aside = " · ".join(part for part in (finding.nature, finding.scope) if part)
        lines.append(f"Where: {clean(finding.brick)}, step {finding.first_step:,} ({clean(aside)})")
    lines.append(f"Cause: {cause(finding)}")
    lines += [f"{number}. {one(why)}" for number, why in enumerate(finding.whys, start=1)]
    if finding.ruled_out:
        out = "; ".join(f"{clean(each.root_cause)} ({clean(each.because)})" for each in finding.ruled_out)
        lines.append(f"Ruled out: {out}")
    lines += [f"Do: {clean(finding.action)}"] if finding.action else []
    lines += [f"Try: {clean(finding.next_experiment)}"] if finding.next_experiment else []
    lines += [f"Promise: {clean(finding.obligation)} It would have caught this."] if finding.obligation else []
    lines += [f"Follows from it: {clean(what)}" for what in finding.follows]
    return lines


def cause(finding: Finding) -> str:
    return f"{clean(words(finding.root_cause))} ({clean(finding.root_cause)}, {100 * finding.confidence:.0f} %)"


def one(why: Why) -> str:
    shown = ", ".join(clean(identity, limit=80) for identity in why.evidence[:_EVIDENCE_SHOWN])
    return f"{clean(why.question)} {clean(why.finding)}{f' [{shown}]' if shown else ''}"


def show(finding: Finding, diagnosis: Diagnosis) -> str:
    """The command that shows the evidence; empty where there is none, or no run to look into."""
    identity = next((each for why in finding.whys for each in why.evidence), "")
    run = diagnosis.run.get("show", diagnosis.run.get("id") or diagnosis.run.get("folder"))
    words_of = (shlex.quote(clean(part, limit=200)) for part in (run, identity))
    return f"brickprof show {' '.join(words_of)}" if identity and run else ""


def unjudged(diagnosis: Diagnosis) -> list[str]:
    """The contracts that nothing could be said about."""
    open_ones = (Verdict.NOT_EVALUATED, Verdict.VACUOUS)
    return [clean(contract.id) for contract in diagnosis.contracts if contract.verdict in open_ones]


def counts(diagnosis: Diagnosis) -> str:
    """How many contracts held, broke and stayed open."""
    said = {
        Verdict.PASS: "held", Verdict.FAIL: "broken", Verdict.NOT_EVALUATED: "not evaluated",
        Verdict.VACUOUS: "without anything to judge",
    }  # fmt: skip
    of = [contract.verdict for contract in diagnosis.contracts]
    parts = [f"{of.count(verdict)} {word}" for verdict, word in said.items() if verdict in of]
    return f"{len(of)} contract{'s' * (len(of) != 1)}: {', '.join(parts)}" if of else "no contracts"


def leading(diagnosis: Diagnosis) -> tuple[Finding | None, tuple[Finding, ...]]:
    """The finding to fix first, and the others; a mere note is never the first."""
    findings = diagnosis.findings
    if not findings or findings[0].severity is Severity.INFO:
        return None, findings
    return findings[0], findings[1:]
