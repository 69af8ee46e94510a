"""A diagnosis on a terminal: verdict, what, where, cause, whys, what to do. A healthy run is one line.

Enters: a ``Diagnosis``. Leaves: styled text. Every string that came from a run is cleaned first and
never read as markup; where the output cannot show more than ASCII, nothing else is written.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.model import Diagnosis, Finding, Why
from brickprof.diagnosis.words import words
from brickprof.reports import transfers
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

NAME, SUFFIX = "terminal", ""

_MARKS = {
    Verdict.PASS: ("✓", "bold green"),
    Verdict.FAIL: ("✗", "bold red"),
    Verdict.VACUOUS: ("○", "bold yellow"),
    Verdict.NOT_EVALUATED: ("○", "bold yellow"),
}
_ASCII = str.maketrans({"✓": "+", "✗": "x", "○": "o", "·": "-", "…": "...", "×": "x", "–": "-", "⏎": "\\n", "→": "->"})
_LABEL = 9
_PLAIN, _DIM, _STRONG = "", "dim", "bold"
_EVIDENCE_SHOWN = 3
_NARROWEST = 40
_FEW = 3
_ENDS = "C-PROCESS-001"


@dataclass(frozen=True, slots=True)
class Line:
    """A label, and behind it a text whose further lines hang below its first."""

    label: Text
    body: Text

    def wrapped(self, width: int | None) -> Text:
        indent = len(self.label)
        if width is None or len(self.body) <= width - indent:
            return self.label + self.body
        from rich.console import Console

        parts = self.body.wrap(Console(width=width), max(width - indent, _NARROWEST // 2))
        for part in parts:
            part.rstrip()
        return self.label + Text("\n" + " " * indent).join(parts)


_EMPTY = Line(Text(), Text())


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Prints ``diagnosis`` on ``console``: laid out for a terminal, one line each for a pipe or a file."""
    width = console.width if console.is_terminal else None
    console.print(fit(_whole(diagnosis, width), console.encoding), soft_wrap=True)


def renderable(diagnosis: Diagnosis, options: ConsoleOptions) -> Text:
    """``diagnosis`` as one styled text, for rich's own protocol."""
    return fit(_whole(diagnosis, options.max_width), options.encoding)


def _whole(diagnosis: Diagnosis, width: int | None) -> Text:
    lines = [Line(Text(), _head(diagnosis))]
    for place, finding in enumerate(diagnosis.findings):
        lines += [_EMPTY, *_finding(finding, diagnosis, first=place == 0)]
    if shows_transfers(diagnosis):
        lines += [_EMPTY, *(Line(Text("  "), Text(line, _DIM)) for line in transfers.lines(diagnosis.run))]
    if len(lines) > 1:
        lines += [_EMPTY, Line(Text("  "), Text(_tail(diagnosis), _DIM))]
    width = None if width is None else max(width, _NARROWEST)
    return Text("\n").join(line.wrapped(width) for line in lines)


def shows_transfers(diagnosis: Diagnosis) -> bool:
    """Whether the table of copies belongs here: something is wrong with them."""
    told = (finding for finding in diagnosis.findings if finding.severity is not Severity.INFO)
    wrong = any(finding.granularity in ("transfer", "host_sync") for finding in told)
    return wrong and bool(transfers.lines(diagnosis.run))


def text(diagnosis: Diagnosis) -> str:
    return _whole(diagnosis, None).plain


def html(diagnosis: Diagnosis) -> str:
    """``diagnosis`` for a notebook."""
    from rich.console import Console

    console = Console(record=True, width=110, file=io.StringIO(), force_jupyter=False)
    console.print(_whole(diagnosis, 110), soft_wrap=True)
    style = "white-space:pre-wrap;font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.4"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def fit(shown: Text, encoding: str) -> Text:
    """``shown`` in what ``encoding`` can say: styles stay, characters it lacks become visible escapes."""
    if encoding.lower().replace("-", "").startswith("utf"):
        return shown
    plain, spans = "", []
    for part in shown.divide(range(1, len(shown.plain))):
        letter = part.plain.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
        spans += [(len(plain), len(plain) + len(letter), span.style) for span in part.spans]
        plain += letter
    fitted = Text(plain, style=shown.style)
    for start, end, style in spans:
        fitted.stylize(style, start, end)
    return fitted


# -- the first line


def _head(diagnosis: Diagnosis) -> Text:
    mark, style = _MARKS[diagnosis.verdict]
    head = Text(f"{mark} {diagnosis.verdict.value.replace('_', ' ')}", style)
    head.append(f"  {_headline(diagnosis)}", _STRONG if diagnosis.verdict is Verdict.FAIL else _PLAIN)
    aside = _aside(diagnosis)
    if aside:
        head.append(f"    {aside}", _DIM)
    return head


def _headline(diagnosis: Diagnosis) -> str:
    steps = diagnosis.run.get("steps") or 0
    if diagnosis.verdict is Verdict.FAIL and diagnosis.findings:
        return _broke(diagnosis.findings[0])
    if diagnosis.verdict is Verdict.FAIL:
        return "; ".join(clean(contract.why) for contract in diagnosis.contracts if contract.verdict == "FAIL")
    counted = f"{steps:,} step{'s' * (steps != 1)}"
    if diagnosis.verdict is Verdict.PASS:
        return f"{counted}, nothing wrong" if not diagnosis.findings else counted
    if diagnosis.verdict is Verdict.VACUOUS:
        return "no training was observed"
    reasons = dict.fromkeys(clean(contract.why) for contract in diagnosis.contracts if contract.why)
    return f"{counted}: {'; '.join(reasons) or 'nothing could be judged'}"


def _broke(finding: Finding) -> str:
    if finding.root_cause in ("no-gradient-path", "dead-activations"):
        return "a part of the model does not learn"
    if finding.contract in ("", _ENDS) or finding.severity is not Severity.ERROR:
        return clean(finding.symptom)
    return f"training broke in step {finding.first_step:,}"


def _aside(diagnosis: Diagnosis) -> str:
    if diagnosis.verdict is Verdict.FAIL:
        ended = diagnosis.run.get("exit")
        if not isinstance(ended, dict) or not ended.get("text"):
            return ""
        seconds = ended.get("seconds")
        after = f" after {seconds:,.0f} s" if isinstance(seconds, (int, float)) else ""
        return f"({clean(ended['text'])}{after})"
    return _tail(diagnosis)


def _tail(diagnosis: Diagnosis) -> str:
    """What held, what was not judged, what looking cost, what was damaged."""
    of = [contract.verdict for contract in diagnosis.contracts]
    held, open_ones = of.count(Verdict.PASS), of.count(Verdict.NOT_EVALUATED)
    parts = [f"{held} contract{'s' * (held != 1)} held"] if held else []
    if open_ones:
        names = [contract.id for contract in diagnosis.contracts if contract.verdict is Verdict.NOT_EVALUATED]
        named = f" ({', '.join(map(clean, names))})" if len(names) <= _FEW else ""
        parts.append(f"{open_ones} not evaluated{named}")
    parts += _mfu(diagnosis.run)
    parts += _cost(diagnosis.run)
    for damage in diagnosis.run.get("damage") or []:
        parts.append(f"damaged: {clean(damage)}")
    if diagnosis.verdict is Verdict.FAIL and diagnosis.run.get("folder"):
        parts.append(f"recorded in {clean(diagnosis.run['folder'])}")
    return " · ".join(parts)


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
    return [f"brickprof cost {100 * share:.1f} %{spent}"]


# -- one finding


def _finding(finding: Finding, diagnosis: Diagnosis, *, first: bool) -> list[Line]:
    if finding.severity is Severity.INFO:
        return [_row("Note", clean(finding.symptom))]
    label = "What" if finding.severity is Severity.ERROR else "Warning"
    lines = [_row(label, clean(finding.symptom), clean(finding.contract))]
    if finding.brick:
        where = f"{clean(finding.brick)}, step {finding.first_step:,}"
        lines.append(_row("Where", where, clean(f"{finding.nature} · {finding.scope}")))
    sure = f"{finding.root_cause} · {100 * finding.confidence:.0f} %"
    lines.append(_row("Cause", clean(words(finding.root_cause)), clean(sure)))
    lines += [_EMPTY] * bool(finding.whys)
    for number, why in enumerate(finding.whys, start=1):
        lines += _why(number, why)
    lines.append(_EMPTY)
    if finding.ruled_out:
        out = " · ".join(f"{clean(o.root_cause)} ({clean(o.because)})" for o in finding.ruled_out)
        lines.append(_row("Ruled out", out))
    if finding.action:
        lines.append(_row("Do", clean(finding.action), style=_STRONG))
    if finding.next_experiment:
        lines.append(_row("Try", clean(finding.next_experiment)))
    lines += _then(finding, diagnosis) if first else []
    return lines if lines[-1] is not _EMPTY else lines[:-1]


def _why(number: int, why: Why) -> list[Line]:
    question = Line(Text(f"  {number}  ", "cyan"), Text(clean(why.question)))
    answer = Text(clean(why.finding))
    if why.evidence:
        shown = [clean(identifier, limit=80) for identifier in why.evidence[:_EVIDENCE_SHOWN]]
        answer.append(f"  [{', '.join(shown)}]", _DIM)
    return [question, Line(Text("     "), answer)]


def _then(finding: Finding, diagnosis: Diagnosis) -> list[Line]:
    identifier = next((i for why in finding.whys for i in why.evidence), "")
    name = diagnosis.run.get("show", diagnosis.run.get("id") or diagnosis.run.get("folder"))
    if not identifier or not name:
        return []
    command = f"brickprof show {clean(name)} {clean(identifier, limit=80)}"
    return [_row("Then", command, "the evidence")]


def _row(label: str, value: str, aside: str = "", style: str = _PLAIN) -> Line:
    body = Text(value, style)
    if aside:
        body = Text("").append_text(body).append(f"    {aside}", _DIM)
    return Line(Text(f"  {label.ljust(_LABEL)}  ", _DIM), body)


REPORT = render
