"""A diagnosis as Markdown for an issue or a pull request: verdict, the finding to fix first, the others, contracts.

Enters: a ``Diagnosis``, and its ``Run`` for the file and the line. Leaves: GitHub's Markdown, short enough for one
comment. A string that came from a run is text wherever it stands: it opens no tag, heading, link, table cell or code,
and mentions nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.reports import plain
from brickprof.reports.places import EVIDENCE, Places
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.contracts.verdicts import ContractResult
    from brickprof.diagnosis.model import Diagnosis, Finding, Why
    from brickprof.reports.places import Place
    from brickprof.run import Run

NAME, SUFFIX = "markdown", ".md"
NEEDS_RUN = True
LONGEST = 60_000
"""Characters; a comment on GitHub has at most 65,536."""
_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.VACUOUS: "⚪", Verdict.NOT_EVALUATED: "⚪"}
_SEVERITIES = {Severity.ERROR: "❌ error", Severity.WARNING: "⚠️ warning", Severity.INFO: "ℹ️ note"}
_EVIDENCE_SHOWN, _CELL = 3, 160

_BREAK = "\u200b"
# What GitHub turns into links, mentions and pictures after it has read the Markdown: only another letter helps there.
_LIVE = re.compile(
    r"(?P<mention>@)(?=\w)|(?P<issue>#)(?=\d)|(?P<issue_2>\bGH-)(?=\d)|(?P<protocol>:)(?=//)|(?P<www>www)(?=\.)"
    r"|(?P<emoji>:)(?=[\w+-]+:)",
    re.IGNORECASE,
)
_LETTERS = {letter: f"\\{letter}" for letter in "\\`*_[]#~"} | {
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "$": "<span>$</span>", _BREAK: "&#8203;",
}  # fmt: skip


def text(diagnosis: Diagnosis, run: Run | None = None) -> str:
    return _fitted(list(_blocks(diagnosis, Places(diagnosis, run))))


def render(diagnosis: Diagnosis, console: Console, run: Run | None = None) -> None:
    # Past the console's own layout: Markdown must not be wrapped or styled.
    console.file.write(text(diagnosis, run))


# -- foreign strings


def escaped(foreign: object, limit: int = 400) -> str:
    """``foreign`` as text in a paragraph, a list or a table."""
    shown = _LIVE.sub(lambda match: match[0] + _BREAK, clean(foreign, limit=limit).strip())
    return "".join(_LETTERS.get(letter, letter) for letter in shown)


def code(foreign: object, limit: int = 200) -> str:
    """``foreign`` as code in a line; in a table its bars need a backslash."""
    shown = clean(foreign, limit=limit).strip() or " "
    fence = _fence(shown, 1)
    space = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{space}{shown}{space}{fence}"


def _fence(shown: str, least: int) -> str:
    """More backticks than stand anywhere in ``shown``."""
    return "`" * max(least, *(len(run) + 1 for run in re.findall("`+", shown)), 1)


# -- the document


def _blocks(diagnosis: Diagnosis, places: Places) -> Iterator[str]:
    first, rest = plain.leading(diagnosis)
    yield f"## {_MARKS[diagnosis.verdict]} {escaped(plain.headline(diagnosis), 600)}"
    yield _about(diagnosis)
    if first is not None:
        yield "\n\n".join(_finding(first, diagnosis, places))
    yield _contracts(diagnosis)
    if rest:
        yield f"### Other findings ({len(rest)})" if first is not None else f"### Findings ({len(rest)})"
    for finding in rest:
        inner = "\n\n".join(_finding(finding, diagnosis, places))
        yield _folded(f"{_SEVERITIES[finding.severity]}: {_summary(finding.symptom)}", inner)


def _fitted(blocks: list[str]) -> str:
    """The blocks that fit into a comment, and how many did not."""
    kept: list[str] = []
    room = LONGEST
    left = 0
    for block in filter(None, blocks):
        if len(block) + 2 > room:
            left += 1
            continue
        room -= len(block) + 2
        kept.append(block)
    if left:
        kept.append(f"_{left} more part{'s' * (left != 1)} did not fit here; `brickprof report RUN -r json` has all._")
    return "\n\n".join(kept) + "\n"


def _about(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    steps, ranks = int(run.get("steps") or 0), int(run.get("ranks") or 0)
    facts = [f"run {code(run['id'], 80)}"] if run.get("id") else []
    facts += [code(plain.name(diagnosis))] if plain.name(diagnosis) != run.get("id") else []
    facts.append(f"{steps:,} step{'s' * (steps != 1)}")
    facts += [f"{ranks} ranks"] if ranks > 1 else []
    ended = run.get("exit")
    if isinstance(ended, dict) and ended.get("text"):
        facts.append(escaped(ended["text"]))
    return " · ".join([*facts, plain.counts(diagnosis)])


def _finding(finding: Finding, diagnosis: Diagnosis, places: Places) -> list[str]:
    named = " · ".join(code(name, 80) for name in (finding.contract, finding.id) if name)
    rows = [("What", f"{escaped(finding.symptom)} ({named})")]
    if finding.brick:
        rows.append(("Where", f"{code(finding.brick)}, step {finding.first_step:,}"))
    place = places.of(finding)
    if place is not None and place.by == EVIDENCE:
        rows.append(("Line", _line(place)))
    sure = f"({code(finding.root_cause)}, {100 * finding.confidence:.0f} %)"
    rows.append(("Cause", f"{escaped(words(finding.root_cause))} {sure}"))
    blocks = ["\n".join(f"- **{label}:** {value}" for label, value in rows)]
    blocks += ["\n".join(_why(number, why) for number, why in enumerate(finding.whys, start=1))] if finding.whys else []
    blocks += [f"**Do:** {escaped(finding.action)}"] if finding.action else []
    blocks += [f"**Try:** {escaped(finding.next_experiment)}"] if finding.next_experiment else []
    blocks += [f"**Promise:** {escaped(finding.obligation)} It would have caught this."] if finding.obligation else []
    if command := plain.show(finding, diagnosis):
        fence = _fence(command, 3)
        blocks.append(f"{fence}console\n{command}\n{fence}")
    return [*blocks, *_asides(finding)]


def _line(place: Place) -> str:
    return code(f"{place.file}:{place.line}", 400)


def _why(number: int, why: Why) -> str:
    shown = " ".join(code(identity, 80) for identity in why.evidence[:_EVIDENCE_SHOWN])
    left = len(why.evidence) - _EVIDENCE_SHOWN
    more = f" and {left} more" if left > 0 else ""
    answer = f"{escaped(why.finding)} {shown}{more}".strip()
    return f"{number}. **{escaped(why.question) or 'Why?'}**<br>{answer}"


def _asides(finding: Finding) -> list[str]:
    """What was ruled out, and what follows from the finding."""
    blocks = []
    if finding.ruled_out:
        out = "\n".join(f"- {code(each.root_cause, 80)}: {escaped(each.because)}" for each in finding.ruled_out)
        blocks.append(_folded(f"Ruled out ({len(finding.ruled_out)})", out))
    if finding.follows:
        out = "\n".join(f"- {escaped(what)}" for what in finding.follows)
        blocks.append(_folded(f"Follows from it ({len(finding.follows)})", out))
    return blocks


def _contracts(diagnosis: Diagnosis) -> str:
    """What was judged as a table, and what was not by its reasons."""
    judged = [each for each in diagnosis.contracts if each.verdict in (Verdict.FAIL, Verdict.PASS)]
    open_ones = [each for each in diagnosis.contracts if each not in judged]
    blocks = []
    if judged:
        rows = ["| contract | verdict | observed | threshold | why |", "|---|---|---|---|---|"]
        rows += [_row(each) for each in sorted(judged, key=lambda each: each.verdict is Verdict.PASS)]
        blocks.append("\n".join(rows))
    if open_ones:
        reasons: dict[str, list[str]] = {}
        for each in open_ones:
            reason = each.why or each.verdict.value.replace("_", " ").lower()
            reasons.setdefault(reason, []).append(code(each.id, 80))
        listed = "\n".join(f"- {' '.join(ids)}: {escaped(why, _CELL)}" for why, ids in reasons.items())
        blocks.append(f"Not evaluated, or nothing there to judge:\n\n{listed}")
    return _folded(f"Contracts ({len(diagnosis.contracts)})", "\n\n".join(blocks)) if blocks else ""


def _row(contract: ContractResult) -> str:
    why = contract.why if contract.why != contract.observed else ""
    told = (escaped(value, _CELL) for value in (contract.observed, contract.threshold, why))
    identity = code(contract.id, 80).replace("|", "\\|")
    return f"| {identity} | {_MARKS[contract.verdict]} {contract.verdict.value} | {' | '.join(told)} |"


def _summary(foreign: str) -> str:
    """``foreign`` inside an HTML element, where Markdown is not read: its escapes would be shown."""
    shown = _LIVE.sub(lambda match: match[0] + _BREAK, clean(foreign, limit=200))
    letters = {letter: f"&#{ord(letter)};" for letter in "&<>\"'`*_[]|~\\$"} | {_BREAK: "&#8203;"}
    return "".join(letters.get(letter, letter) for letter in shown)


def _folded(summary: str, inner: str) -> str:
    # The empty line behind the summary makes GitHub read Markdown again.
    return f"<details><summary>{summary}</summary>\n\n{inner}\n\n</details>"


REPORT = render
