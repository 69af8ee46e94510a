"""Every contract of a run with its verdict, what was observed and what is asked for, in lines for a terminal.

Enters: a ``Diagnosis``. Leaves: lines: what is broken first, then what held; what was not exercised and what could not
be judged share a line where they share the reason, so that forty of them are a few lines.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from brickprof.contracts.verdicts import ContractResult, Verdict
from brickprof.diagnosis.model import Diagnosis
from brickprof.reports.terminal import DIM, MARKS, Line, verdict_word
from brickprof.text import clean

_WIDE = 96
"""Columns from which on what was observed stands beside the name, and not below it."""
_LONE = 6
"""Reasons that only one contract has, up to which each of them is told."""
_WORD = len("NOT EVALUATED")


def lines(diagnosis: Diagnosis, width: int | None) -> list[Line]:
    named = [contract for contract in diagnosis.contracts if contract.id]
    by_verdict = {verdict: [each for each in named if each.verdict is verdict] for verdict in MARKS}
    judged = [*by_verdict[Verdict.FAIL], *by_verdict[Verdict.PASS]]
    longest = max((len(clean(contract.id)) for contract in judged), default=0)
    found = [line for contract in judged for line in _judged(contract, longest, width)]
    for verdict in (Verdict.VACUOUS, Verdict.NOT_EVALUATED):
        found += _grouped(by_verdict[verdict], verdict, width)
    return found


def counted(diagnosis: Diagnosis) -> str:
    """How many of each verdict, in words."""
    said = {Verdict.FAIL: "broken", Verdict.PASS: "held", Verdict.VACUOUS: "vacuous",
            Verdict.NOT_EVALUATED: "not evaluated"}  # fmt: skip
    numbers = {verdict: sum(each.verdict is verdict for each in diagnosis.contracts) for verdict in said}
    return " · ".join(f"{number} {said[verdict]}" for verdict, number in numbers.items() if number)


def _judged(contract: ContractResult, longest: int, width: int | None) -> list[Line]:
    body = Text(clean(contract.observed or contract.why))
    if contract.threshold:
        body.append(f"    threshold: {clean(contract.threshold)}", DIM)
    name = clean(contract.id)
    if width is None or width >= _WIDE:
        return [Line(_label(contract.verdict).append(f"{name.ljust(longest)}  "), body)]
    return [Line(_label(contract.verdict), Text(name)), Line(Text("      "), body)]


def _label(verdict: Verdict) -> Text:
    mark, style = MARKS[verdict]
    return Text("  ").append(f"{mark} {verdict_word(verdict).ljust(_WORD)}", style).append("  ")


def _grouped(contracts: list[ContractResult], verdict: Verdict, width: int | None) -> list[Line]:
    groups = by_reason(contracts)
    several = sorted((group for group in groups.items() if len(group[1]) > 1), key=lambda group: -len(group[1]))
    lone = [group for group in groups.items() if len(group[1]) == 1]
    shown = [*several, *(lone if len(lone) <= _LONE else lone[: _LONE - 1])]
    rest = [name for _, names in lone[len(shown) - len(several) :] for name in names]
    if rest:
        shown.append((f"{len(rest)} more, each for a reason of its own (--json tells them)", rest))
    return [_group(reason, names, verdict, width) for reason, names in shown]


def _group(reason: str, names: list[str], verdict: Verdict, width: int | None) -> Line:
    label = _label(verdict)
    if width is not None and width < _WIDE:
        label, reason = Text("  "), f"{MARKS[verdict][0]} {verdict_word(verdict)}: {reason}"
    return Line(label, Text(reason).append(f"    {', '.join(names)}", DIM))


def by_reason(contracts: Iterable[ContractResult]) -> dict[str, list[str]]:
    """The contracts' names by why they were not judged; reasons that begin alike ("no GPU: ...") are one."""
    told = [(clean(each.id), clean(each.why) or "no reason was given") for each in contracts]
    heads = [_head(reason) for _, reason in told]
    groups: dict[str, list[str]] = {}
    for (name, reason), head in zip(told, heads, strict=True):
        groups.setdefault(head if heads.count(head) > 1 else reason, []).append(name)
    return groups


def _head(reason: str) -> str:
    return reason.partition(": ")[0]
