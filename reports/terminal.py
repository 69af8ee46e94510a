"""A diagnosis in words, for the end of a run: verdict, what, where, cause, whys, what to do. A healthy run is one line.

Enters: a ``Diagnosis``. Leaves: styled text. Every string that came from a run is cleaned first and never read as
markup; where the output cannot show more than ASCII, nothing else is written. What a colour says, a word says too, and
only colours are used that can be read on a light background and on a dark one.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.model import Diagnosis, Finding, Why
from brickprof.diagnosis.words import words
from brickprof.reports import fallbacks, sparks, transfers
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

GOOD, BAD, OPEN, PLAIN, DIM, STRONG = "bold green", "bold red", "bold magenta", "", "dim", "bold"
"""Every style of a report for terminals; yellow and cyan cannot be read on white, blue not on black."""
MARKS = {
    Verdict.PASS: ("✓", GOOD),
    Verdict.FAIL: ("✗", BAD),
    Verdict.VACUOUS: ("○", OPEN),
    Verdict.NOT_EVALUATED: ("○", OPEN),
}
_ASCII = str.maketrans({
    "✓": "+", "✗": "x", "○": "o", "·": "-", "…": "...", "×": "x", "–": "-", "⏎": "\\n", "→": "->", "°": " deg ",
    **sparks.ASCII,
})  # fmt: skip
_LABEL = 9
_EVIDENCE_SHOWN = 3
_LONGEST_COMMAND = 200
_NARROWEST = 40
_LEAST = 12
"""Columns that a text behind its label has at least."""
_FEW = 3
_IN_FULL, _IN_BRIEF, _NOTES = 3, 10, 5
"""Findings that are told with all their whys at the end of a run; those that are told at all; and mere notes."""
_STABLE = "C-TRAINSTABLE-001"
_ENDS = "C-PROCESS-001"
_OF_THE_LOSS = frozenset({
    "C-TRAINSTABLE-001", "C-LOSSSPIKE-001", "C-LEARN-001", "C-GENERAL-001", "FALSIFY-ALBOR-001", "FALSIFY-ALBOR-002",
})  # fmt: skip
"""Contracts whose violation is seen in the course of the loss."""


@dataclass(frozen=True, slots=True)
class Line:
    """A label, and behind it a text whose further lines hang below its first."""

    label: Text
    body: Text

    def wrapped(self, width: int | None) -> Text:
        indent = self.label.cell_len
        line = Text().append_text(self.label)  # not label + body: a label's style is its own
        if width is None or self.body.cell_len <= width - indent:
            return line.append_text(self.body)
        from rich.console import Console

        parts = self.body.wrap(Console(width=width), max(width - indent, _LEAST))
        for part in parts:
            part.rstrip()
        return line.append_text(Text("\n" + " " * indent).join(parts))


EMPTY = Line(Text(), Text())


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Prints ``diagnosis`` on ``console``: laid out for a terminal, one line each for a pipe or a file."""
    put(lines(diagnosis, width_of(console)), console)


def renderable(diagnosis: Diagnosis, options: ConsoleOptions) -> Text:
    """``diagnosis`` as one styled text, for rich's own protocol."""
    return fit(_joined(lines(diagnosis, options.max_width), options.max_width), options.encoding)


def text(diagnosis: Diagnosis) -> str:
    return _joined(lines(diagnosis, None), None).plain


def html(diagnosis: Diagnosis) -> str:
    """``diagnosis`` for a notebook."""
    from rich.console import Console

    console = Console(record=True, width=110, file=io.StringIO(), force_jupyter=False)
    console.print(_joined(lines(diagnosis, 110), 110), soft_wrap=True)
    style = "white-space:pre-wrap;font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.4"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def put(shown: Iterable[Line], console: Console) -> None:
    """Prints lines as ``console`` can show them."""
    console.print(fit(_joined(shown, width_of(console)), console.encoding), soft_wrap=True)


def width_of(console: Console) -> int | None:
    """How wide the lines may be; None for a pipe or a file, which takes lines of any length."""
    return max(console.width, _NARROWEST) if console.is_terminal else None


def _joined(shown: Iterable[Line], width: int | None) -> Text:
    width = None if width is None else max(width, _NARROWEST)
    return Text("\n").join(line.wrapped(width) for line in shown)


def lines(diagnosis: Diagnosis, width: int | None, *, whole: bool = False) -> list[Line]:
    """The report; ``whole`` tells of every finding, and leaves to others what they draw larger."""
    found = [Line(Text(), _head(diagnosis, alone=not whole))]
    found += _findings(diagnosis, width, whole=whole)
    if shows_transfers(diagnosis):
        found += [EMPTY, *(Line(Text("  "), Text(line, DIM)) for line in transfers.lines(diagnosis.run))]
    if (len(found) > 1 or whole) and (tail := _tail(diagnosis, counts=not whole)):
        found += [EMPTY, Line(Text("  "), Text(tail, DIM))]
    return found


def shows_transfers(diagnosis: Diagnosis) -> bool:
    """Whether the table of copies belongs here: something is wrong with them."""
    told = (finding for finding in diagnosis.findings if finding.severity is not Severity.INFO)
    wrong = any(finding.granularity in ("transfer", "host_sync") for finding in told)
    return wrong and bool(transfers.lines(diagnosis.run))


def fit(shown: Text, encoding: str) -> Text:
    """``shown`` in what ``encoding`` can say: styles stay, characters it lacks become visible escapes."""
    if encoding.lower().replace("-", "").startswith("utf") or shown.plain.isascii():
        return shown
    letters = [letter.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii") for letter in shown.plain]
    starts = list(accumulate(map(len, letters), initial=0))
    fitted = Text("".join(letters), style=shown.style)
    for span in shown.spans:
        fitted.stylize(span.style, starts[min(span.start, len(letters))], starts[min(span.end, len(letters))])
    return fitted


# -- the first line


def _head(diagnosis: Diagnosis, *, alone: bool) -> Text:
    """Verdict and headline; where it may be all there is, also what else is to be said."""
    mark, style = MARKS[diagnosis.verdict]
    head = Text().append(f"{mark} {verdict_word(diagnosis.verdict)}", style)
    head.append(f"  {_headline(diagnosis)}", STRONG if diagnosis.verdict is Verdict.FAIL else PLAIN)
    aside = _ending(diagnosis) if diagnosis.verdict is Verdict.FAIL else _tail(diagnosis) if alone else ""
    if aside:
        head.append(f"    {aside}", DIM)
    return head


def verdict_word(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ")


def _headline(diagnosis: Diagnosis) -> str:
    steps = diagnosis.run.get("steps") or 0
    if diagnosis.verdict is Verdict.FAIL and diagnosis.findings:
        return _broke(diagnosis.findings[0], diagnosis)
    if diagnosis.verdict is Verdict.FAIL:
        return "; ".join(clean(contract.why) for contract in diagnosis.contracts if contract.verdict == "FAIL")
    counted = f"{steps:,} step{'s' * (steps != 1)}{' so far' * _unfinished(diagnosis)}"
    if diagnosis.verdict is Verdict.PASS:
        return f"{counted}, nothing wrong" if not diagnosis.findings else counted
    if diagnosis.verdict is Verdict.VACUOUS:
        return clean(diagnosis.run.get("untold") or "no training was observed")
    reasons = dict.fromkeys(clean(contract.why) for contract in diagnosis.contracts if contract.why)
    return f"{counted}: {'; '.join(reasons) or 'nothing could be judged'}"


def _broke(finding: Finding, diagnosis: Diagnosis) -> str:
    if finding.root_cause in ("no-gradient-path", "dead-activations"):
        return "a part of the model does not learn"
    if finding.contract in ("", _ENDS) or finding.severity is not Severity.ERROR:
        return clean(finding.symptom)
    unstable = any(each.id == _STABLE and each.verdict == Verdict.FAIL for each in diagnosis.contracts)
    if finding.nature == "static" and not unstable:
        return f"wrong from step {finding.first_step:,} on"  # it trains: nothing broke that was whole
    return f"training broke in step {finding.first_step:,}"


def _ending(diagnosis: Diagnosis) -> str:
    ended = diagnosis.run.get("exit")
    if _unfinished(diagnosis):
        return "(it goes on, or was killed: no end is recorded)"
    if not isinstance(ended, dict) or not ended.get("text"):
        return ""
    seconds = ended.get("seconds")
    after = f" after {seconds:,.0f} s" if isinstance(seconds, (int, float)) else ""
    return f"({clean(ended['text'])}{after})"


def _unfinished(diagnosis: Diagnosis) -> bool:
    return diagnosis.run.get("ended") is False


def _tail(diagnosis: Diagnosis, *, counts: bool = True) -> str:
    """What held, what was not judged, what looking cost and had to do without, what was damaged; without ``counts``,
    what no table has."""
    parts = _counts(diagnosis) if counts else []
    parts += _mfu(diagnosis.run)
    parts += _cost(diagnosis.run)
    parts += fallbacks.lines(diagnosis.run) + ([] if counts else fallbacks.on_host(diagnosis.run))
    parts += [f"damaged: {clean(damage)}" for damage in diagnosis.run.get("damage") or [] if counts]
    if diagnosis.verdict is Verdict.FAIL and diagnosis.run.get("folder"):
        parts.append(f"recorded in {clean(diagnosis.run['folder'])}")
    return " · ".join(parts)


def _counts(diagnosis: Diagnosis) -> list[str]:
    held = sum(contract.verdict is Verdict.PASS for contract in diagnosis.contracts)
    names = [clean(contract.id) for contract in diagnosis.contracts if contract.verdict is Verdict.NOT_EVALUATED]
    found = [f"{held} contract{'s' * (held != 1)} held"] if held else []
    named = f" ({', '.join(names)})" if len(names) <= _FEW else ""
    return [*found, f"{len(names)} not evaluated{named}"] if names else found


def _mfu(run: dict[str, Any]) -> list[str]:
    used = run.get("mfu")
    ratio = used.get("ratio") if isinstance(used, dict) else None
    return [f"MFU {ratio:.0%} ({clean(used['how'])})"] if used and isinstance(ratio, (int, float)) else []


def _cost(run: dict[str, Any]) -> list[str]:
    """What looking cost; in a short run, what the first looks cost and what it came to after them."""
    told = [run.get(f"overhead{name}") for name in ("", "_seconds", "_first_seconds", "_settled")]
    share, seconds, first, settled = (value if isinstance(value, (int, float)) else None for value in told)
    if share is None:
        return []
    if first is not None and settled is not None and seconds and first > seconds / 2:
        return [f"brickprof cost {first:.1f} s at the start, then {100 * settled:.1f} %"]
    spent = f" ({seconds:.1f} s)" if seconds is not None else ""
    return [f"brickprof cost {100 * (share if settled is None else settled):.1f} %{spent}"]


# -- findings


def _findings(diagnosis: Diagnosis, width: int | None, *, whole: bool) -> list[Line]:
    """The one to fix first and the next ones with their whys, the others in brief, then the notes."""
    told = [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]
    notes = [finding for finding in diagnosis.findings if finding.severity is Severity.INFO]
    shown = told if whole else told[:_IN_BRIEF]
    found: list[Line] = []
    for place, finding in enumerate(shown):
        in_full = place < (_IN_BRIEF if whole else _IN_FULL)
        found += [EMPTY, *(_finding(finding) if in_full else _in_brief(finding))]
        if place == 0:
            found[_end_of_head(found) : _end_of_head(found)] = [] if whole else _course(finding, diagnosis, width)
            found += _then(finding, diagnosis)
    listed = notes if whole else notes[:_NOTES]
    found += [EMPTY, *(row("Note", clean(finding.symptom)) for finding in listed)] if listed else []
    if more := len(told) - len(shown) + len(notes) - len(listed):
        how = f"brickprof show {_typed(diagnosis)}" if _typed(diagnosis) else "--json"
        found += [EMPTY, row("More", f"{more:,} other{'s' * (more != 1)}", f"{how} has them all")]
    return found


def _end_of_head(found: list[Line]) -> int:
    """Where the rows what, where and cause end: behind them stands an empty line."""
    return next((at for at, line in enumerate(found) if at and line is EMPTY), len(found))


def _finding(finding: Finding) -> list[Line]:
    found = _what(finding)
    found += [EMPTY] * bool(finding.whys)
    for number, why in enumerate(finding.whys, start=1):
        found += _why(number, why)
    found.append(EMPTY)
    if finding.ruled_out:
        out = " · ".join(f"{clean(o.root_cause)} ({clean(o.because)})" for o in finding.ruled_out)
        found.append(row("Ruled out", out))
    if finding.follows:
        found.append(row("Follows", _listed(finding.follows)))
    if finding.action:
        found.append(row("Do", clean(finding.action), style=STRONG))
    if finding.next_experiment:
        found.append(row("Try", clean(finding.next_experiment)))
    if finding.obligation:
        found.append(row("Promise", clean(finding.obligation), "would have caught it"))
    return found if found[-1] is not EMPTY else found[:-1]


def _in_brief(finding: Finding) -> list[Line]:
    found = _what(finding)
    return [*found, row("Do", clean(finding.action))] if finding.action else found


def _what(finding: Finding) -> list[Line]:
    label = "What" if finding.severity is Severity.ERROR else "Warning"
    named = " · ".join(clean(name) for name in (finding.contract, finding.id) if name)
    found = [row(label, clean(finding.symptom), named)]
    place = ", ".join(part for part in (clean(finding.brick), _rank(finding)) if part)
    if place:
        where = f"{place}, step {finding.first_step:,}"
        found.append(row("Where", where, clean(f"{finding.nature} · {finding.scope}")))
    sure = f"{finding.root_cause} · {100 * finding.confidence:.0f} %"
    return [*found, row("Cause", clean(words(finding.root_cause)), clean(sure))]


def _rank(finding: Finding) -> str:
    """The rank, where a log of several tells nothing else of the place."""
    rank = finding.coordinates.get("rank")
    return "" if rank is None else clean(f"rank {rank}")


def _listed(follows: tuple[str, ...]) -> str:
    """What follows from a finding, in one line."""
    more = len(follows) - _FEW
    return " · ".join([*map(clean, follows[:_FEW]), *([f"and {more} more"] if more > 0 else [])])


def _why(number: int, why: Why) -> list[Line]:
    question = Line(Text(f"  {number}  ", STRONG), Text(clean(why.question)))
    answer = Text(clean(why.finding))
    if why.evidence:
        shown = [clean(identifier, limit=80) for identifier in why.evidence[:_EVIDENCE_SHOWN]]
        answer.append(f"  [{', '.join(shown)}]", DIM)
    return [question, Line(Text("     "), answer)]


def _course(finding: Finding, diagnosis: Diagnosis, width: int | None) -> list[Line]:
    """The loss as a small picture, where the finding is one that can be seen in it."""
    curve = (diagnosis.run.get("curves") or {}).get("loss")
    if finding.severity is not Severity.ERROR or finding.contract not in _OF_THE_LOSS or not curve:
        return []
    bars = sparks.bars(curve, sparks.room(width, _LABEL + 4))
    return [row("Loss", bars, sparks.ends(curve))] if bars else []


def _then(finding: Finding, diagnosis: Diagnosis) -> list[Line]:
    """Commands to paste: nothing in them is for a shell to read."""
    name = _typed(diagnosis)
    shown = (i for why in finding.whys for i in why.evidence if clean(i, limit=_LONGEST_COMMAND) == i)
    identifier = next(shown, "")
    found = [row("Then", f"brickprof show {name} {shlex.quote(identifier)}", "the evidence")] if identifier else []
    if diagnosis.run.get("folder") and finding.contract not in ("", _ENDS):
        label = "" if found else "Then"
        found.append(row(label, f"brickprof ratchet {name} {clean(finding.id)}", "keep it from coming back"))
    return found if name else []


def _typed(diagnosis: Diagnosis) -> str:
    """What stands for this run in a command; empty where nothing does."""
    if "show" in diagnosis.run:  # a log's own, quoted already
        return clean(diagnosis.run["show"])
    name = str(diagnosis.run.get("id") or diagnosis.run.get("folder") or "")
    return shlex.quote(name) if name and clean(name) == name else ""


def row(label: str, value: str, aside: str = "", style: str = PLAIN) -> Line:
    body = Text(value, style)
    if aside:
        body = Text("").append_text(body).append(f"    {aside}", DIM)
    return Line(Text(f"  {label.ljust(_LABEL)}  ", DIM), body)
