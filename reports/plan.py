"""What is to be said of a configuration, on a terminal or as JSON.

Enters: a document and the opinion of it. Leaves: the verdict first, then each contract with its arithmetic.
"""

from __future__ import annotations

import json

from rich.console import Console
from rich.text import Text

from brickprof.contracts.documents import Document
from brickprof.contracts.plans import Judged, Opinion
from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.text import clean

_MARKS = {Verdict.PASS: ("✓", "green"), Verdict.FAIL: ("✗", "red")}
_BLANK = ("○", "magenta")


def render(document: Document, opinion: Opinion, console: Console) -> None:
    mark, colour = _MARKS.get(opinion.verdict, _BLANK)
    title = Text.assemble((f"{mark} {opinion.verdict.value}", f"bold {colour}"), f"  {clean(document.file)}")
    title.append(f"    {opinion.settings} settings understood", "dim")
    console.print(title, soft_wrap=True)
    for judged in opinion.judged:
        _contract(judged, console)
    for key, near in opinion.misspelt:
        text = f"  ! {document.at(key)}: {clean(key)} is not a setting anybody knows. Did you mean {near}?"
        console.print(Text(text, "magenta"), soft_wrap=True)
    if opinion.unknown:
        names = ", ".join(clean(key) for key in opinion.unknown[:12])
        more = f" and {len(opinion.unknown) - 12} more" if len(opinion.unknown) > 12 else ""
        console.print(Text(f"  Not judged: {names}{more}", "dim"), soft_wrap=True)


def _contract(judged: Judged, console: Console) -> None:
    mark, colour = _MARKS.get(judged.verdict, _BLANK)
    console.print(Text.assemble((f"  {mark} {judged.verdict.value:<14}", colour), judged.contract))
    for line in judged.lines:
        sign = {Severity.ERROR: "✗", Severity.WARNING: "!"}.get(line.severity, "·") if line.severity else "·"
        style = {"✗": "red", "!": "magenta"}.get(sign, "")
        console.print(Text(f"      {sign} {clean(line.text)}", style), soft_wrap=True)
        if line.arithmetic:
            console.print(Text(f"          {clean(line.arithmetic)}", "dim"), soft_wrap=True)
    if not judged.lines:
        for missing in judged.missing:
            console.print(Text(f"      · {clean(missing)}", "dim"), soft_wrap=True)


def to_json(document: Document, opinion: Opinion) -> str:
    contracts = [
        {
            "id": judged.contract, "verdict": judged.verdict.value, "missing": judged.missing,
            "lines": [
                {"severity": line.severity.value if line.severity else None, "text": line.text,
                 "arithmetic": line.arithmetic}
                for line in judged.lines
            ],
        }
        for judged in opinion.judged
    ]  # fmt: skip
    found = {
        "schema": 1, "verdict": opinion.verdict.value, "file": document.file, "contracts": contracts,
        "misspelt": [{"key": key, "nearest": near} for key, near in opinion.misspelt], "unknown": list(opinion.unknown),
    }  # fmt: skip
    return json.dumps(found, indent=2)
