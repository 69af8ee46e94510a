"""Many runs as one table: a line a run, the worst first.

Enters: judged runs. Leaves: rows for programs (``rows``, ``csv_text``), styled text for people (``render``), Markdown.
Every string that came from a log is cleaned first and never read as markup.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.model import Diagnosis, Finding
from brickprof.diagnosis.words import words
from brickprof.reports import terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("run", "format", "steps", "verdict", "what happened", "first sign", "best loss")
SORTS = ("worst", "name", "steps", "loss", "given")
_FIELDS = (
    "run", "format", "steps", "verdict", "severity", "cause", "confidence", "contract", "what", "first_step",
    "detected_step", "first_sign", "best_loss", "best_step", "last_loss", "files",
)  # fmt: skip
_STYLES = {"✗": "bold red", "!": "bold yellow", "✓": "bold green", "○": "yellow"}
_SHORT = (
    ("out-of-memory", "oom"), ("loss-spike", "spike"), ("overfitting", "overfit"), ("not-learning", "not learning"),
)  # fmt: skip
_KINDS = (
    ("nan", ("is nan", "is inf", "are nan", "not finite", "nan from")), ("spike", ("spike", "jumped")),
    ("diverged", ("diverge", "rose and stayed", "rises")), ("overfit", ("overfit",)),
    ("oom", ("out of memory",)), ("not learning", ("not learn", "plateau", "does not fall", "has not fallen")),
)  # fmt: skip
_LONGEST = 72


def order(runs: Sequence[Any], by: str) -> list[Any]:
    """The runs in the order asked for; those that compare equal stay as they were named."""
    keys: dict[str, Callable[[Any], Any]] = {
        "worst": lambda run: _badness(run.diagnosis),
        "name": lambda run: run.name,
        "steps": lambda run: -run.steps,
        "loss": lambda run: math.inf if run.best is None else run.best[1],
        "given": lambda run: 0,
    }
    return sorted(runs, key=keys[by])


def _badness(diagnosis: Diagnosis) -> tuple[int, int]:
    lead = leading(diagnosis)
    if lead is not None:
        return (0 if lead.severity is Severity.ERROR else 1), lead.first_step
    return {Verdict.FAIL: 1, Verdict.PASS: 4, Verdict.VACUOUS: 3, Verdict.NOT_EVALUATED: 3}[diagnosis.verdict], 0


def leading(diagnosis: Diagnosis) -> Finding | None:
    """The finding that the table speaks of: the first that is more than a note."""
    return next((finding for finding in diagnosis.findings if finding.severity is not Severity.INFO), None)


def mark(diagnosis: Diagnosis) -> str:
    lead = leading(diagnosis)
    if lead is not None:
        return "✗" if lead.severity is Severity.ERROR else "!"
    return {Verdict.PASS: "✓", Verdict.FAIL: "✗"}.get(diagnosis.verdict, "○")


def word(finding: Finding) -> str:
    """What kind of trouble, in a word."""
    symptom = finding.symptom.lower()
    for short, signs in _KINDS:
        if any(sign in symptom for sign in signs):
            return short
    return dict(_SHORT).get(finding.root_cause, finding.root_cause.replace("-", " "))


def rows(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """A row for each run, as plain data."""
    made = []
    for run in runs:
        lead = leading(run.diagnosis)
        made.append({
            "run": clean(run.name), "format": clean(run.format), "steps": run.steps,
            "verdict": run.diagnosis.verdict.value, "severity": lead.severity.value if lead else "",
            "cause": lead.root_cause if lead else "", "confidence": lead.confidence if lead else None,
            "contract": lead.contract if lead else "", "what": clean(lead.symptom) if lead else "",
            "first_step": lead.first_step if lead else None, "detected_step": lead.detected_step if lead else None,
            "first_sign": first_sign(lead) if lead else "", "best_loss": run.best[1] if run.best else None,
            "best_step": run.best[0] if run.best else None, "last_loss": run.last,
            "files": " ".join(clean(file) for file in run.files),
        })  # fmt: skip
    return made


def first_sign(finding: Finding) -> str:
    """Where it began: the earliest thing that the whys rest on, else the step."""
    if finding.first_step < finding.detected_step and finding.whys:
        told = [why.finding for why in finding.whys if why.evidence and f"{finding.first_step:,}" in why.finding]
        if told:
            return _short(told[0].split("; ")[0].split(" while ")[0].rstrip("."))
    return f"step {finding.first_step:,}"


def _short(text: str) -> str:
    shown = clean(text)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1].rsplit(" ", 1)[0] + " …"


def cells(run: Any) -> tuple[str, ...]:
    lead = leading(run.diagnosis)
    sign = mark(run.diagnosis)
    verdict = f"{sign} {word(lead)}" if lead else sign if sign == "✓" else f"{sign} {_open(run.diagnosis)}"
    return (
        clean(run.name, limit=60), clean(run.format, limit=30), f"{run.steps:,}", verdict,
        clean(lead.symptom, limit=120) if lead else "-", first_sign(lead) if lead else "-",
        "-" if run.best is None else f"{run.best[1]:.4g}",
    )  # fmt: skip


def _open(diagnosis: Diagnosis) -> str:
    return "no training" if diagnosis.verdict is Verdict.VACUOUS else diagnosis.verdict.value.lower().replace("_", " ")


def render(runs: Sequence[Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in COLUMNS:
        right = name in ("steps", "best loss")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for run in runs:
        told = cells(run)
        styled = [terminal.fit(Text(cell), console.encoding) for cell in told]
        styled[3].stylize(_STYLES.get(told[3][:1], ""), 0, 1)
        table.add_row(*styled)
    console.print(table)


def csv_text(runs: Sequence[Any]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in rows(runs):
        writer.writerow({name: _harmless(value) for name, value in row.items()})
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is none."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def markdown(runs: Sequence[Any], *, brief: bool = False) -> str:
    """The table and, for each broken run, its whys."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(_escaped(cell) for cell in cells(run))} |" for run in runs]
    for run in runs if not brief else ():
        lead = leading(run.diagnosis)
        if lead is None:
            continue
        lines += ["", f"### {_escaped(clean(run.name))}", "", f"{_escaped(clean(lead.symptom))}.", ""]
        lines.append(f"Cause: {_escaped(words(lead.root_cause))} ({100 * lead.confidence:.0f} %).")
        lines += [
            f"{number}. {_escaped(clean(why.question))} {_escaped(clean(why.finding))}"
            for number, why in enumerate(lead.whys, start=1)
        ]
        lines += [f"\nDo: {_escaped(clean(lead.action))}"] if lead.action else []
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|" else letter for letter in text)
