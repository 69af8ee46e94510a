"""What things are in a line, and in a few lines of Markdown.

Enters: a ``Diagnosis``, a ``Finding``. Leaves: one line of plain text (``line_of_...``), and Markdown in which no
foreign string is markup (``markdown_of_...``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis, Finding

MARKS = {Verdict.PASS: "✓", Verdict.FAIL: "✗"}
SEVERITIES = {Severity.ERROR: "✗ error", Severity.WARNING: "! warning", Severity.INFO: "· note"}
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
_LONG = 160
_MOST = 8


def name_of(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    return clean(run.get("name") or run.get("id") or "run", limit=60)


def line_of_diagnosis(diagnosis: Diagnosis) -> str:
    """``<Diagnosis ✗ FAIL k3f9: 212 steps, 2 findings; loss is nan from step 213 on>``"""
    steps, found = diagnosis.run.get("steps") or 0, len(diagnosis.findings)
    first = f"; {clean(diagnosis.findings[0].symptom, limit=_LONG)}" if found else ""
    counted = f"{steps:,} step{'s' * (steps != 1)}, {found} finding{'s' * (found != 1)}"
    return f"<Diagnosis {verdict(diagnosis.verdict)} {name_of(diagnosis)}: {counted}{first}>"


def line_of_finding(finding: Finding) -> str:
    """``<Finding error in step 212 of blocks.11: loss is nan ... (learning-rate-too-high, 94 %)>``"""
    place = f" of {clean(finding.brick, limit=60)}" if finding.brick else ""
    cause = f" ({clean(finding.root_cause, limit=60)}, {100 * finding.confidence:.0f} %)" if finding.root_cause else ""
    symptom = clean(finding.symptom, limit=_LONG)
    return f"<Finding {finding.severity.value} in step {finding.first_step:,}{place}: {symptom}{cause}>"


def verdict(of: Verdict) -> str:
    return f"{MARKS.get(of, '○')} {of.value.replace('_', ' ')}"


def markdown_of_diagnosis(diagnosis: Diagnosis) -> str:
    """The verdict, the finding to fix first, and how many others there are."""
    from brickprof.reports import terminal

    head = terminal.text(diagnosis).split("\n", 1)[0]
    mark, _, rest = head.partition("  ")
    told = [f"**{plain(mark)}** {plain(rest, 600)}"]
    serious = [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]
    told += [markdown_of_finding(finding) for finding in serious[:1]]
    more = len(diagnosis.findings) - len(serious[:1])
    told += [f"{more} more finding{'s' * (more != 1)}."] if more else []
    return "\n\n".join(told)


def markdown_of_finding(finding: Finding) -> str:
    place = f" of {plain(finding.brick)}" if finding.brick else ""
    where = f" (step {finding.first_step:,}{place})"
    lines = [f"**{SEVERITIES[finding.severity]}** {plain(finding.symptom)}{where}"]
    lines += [
        f"{number}. {plain(why.question)} {plain(why.finding)}" for number, why in enumerate(finding.whys, start=1)
    ]
    if finding.root_cause:
        lines.append(f"- Cause: {plain(words(finding.root_cause))} ({100 * finding.confidence:.0f} %)")
    lines += [f"- Do: {plain(finding.action, 1_200)}"] if finding.action else []
    return "\n".join(lines)


def markdown_of_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    told = [" | ".join(head), " | ".join("---" for _ in head)]
    told += [" | ".join(plain(cell, 200) for cell in row) for row in rows]
    return "\n".join(f"| {row} |" for row in told)


def plain(foreign: object, limit: int = 400) -> str:
    """``foreign`` as text of Markdown: nothing in it is markup."""
    return _MARKUP.sub(r"\\\1", clean(foreign, limit=limit))


def size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def span(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
