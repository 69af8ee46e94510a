"""The words of the page: verdict, the first finding with its chain of whys, the other findings.

Enters: a ``Diagnosis`` and who looks its evidence up. Leaves: HTML. ``told`` is the only way in for a
foreign string.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.reports import fallbacks, terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis, Finding, Why
    from brickprof.reports.page.proof import Proof, Prover

_TONES = {Verdict.PASS: "good", Verdict.FAIL: "bad"}
_SEVERITIES = {Severity.ERROR: "✗ error", Severity.WARNING: "! warning", Severity.INFO: "· note"}


_SURE = 0.7


def told(foreign: object, limit: int = 400) -> str:
    """``foreign`` as text of a page: nothing in it can be read as markup or reorder what is read."""
    return html.escape(clean(foreign, limit=limit), quote=True)


def verdict(diagnosis: Diagnosis) -> str:
    """The first line of the terminal's report, and what stands beside it."""
    line = terminal.text(diagnosis).split("\n", 1)[0]
    mark, _, rest = line.partition("  ")
    headline, _, aside = rest.partition("    ")
    tone = _TONES.get(diagnosis.verdict, "open")
    unsaid = [line for line in fallbacks.lines(diagnosis.run) if line not in aside]
    beside = "".join(f'<p class="aside">{told(line, 2_000)}</p>' for line in (aside, *unsaid) if line)
    return f'<h1><span class="mark {tone}">{told(mark)}</span> {told(headline, 2_000)}</h1>{beside}'


def about(diagnosis: Diagnosis) -> str:
    """Which run this is."""
    run = diagnosis.run
    steps, ranks = run.get("steps") or 0, run.get("ranks") or 0
    facts = [run.get("name") or run.get("id"), run.get("script"), run.get("format") or run.get("source")]
    facts.append(f"{steps:,} step{'s' * (steps != 1)}")
    facts += [f"{ranks} ranks"] if ranks > 1 else []
    return " · ".join(told(fact, 120) for fact in dict.fromkeys(str(fact) for fact in facts if fact))


# -- findings


def leading(finding: Finding, prover: Prover) -> str:
    """The finding to fix first: what, where, cause, the chain, what to do."""
    rows = [("What", told(finding.symptom, 1_000), told(finding.contract))]
    if finding.brick:
        place = f"{told(finding.brick)}, step {finding.first_step:,}"
        rows.append(("Where", place, told(f"{finding.nature} · {finding.scope}")))
    if finding.root_cause:
        sure = f"{finding.root_cause} · {100 * finding.confidence:.0f} %"
        rows.append(("Cause", f"<strong>{told(words(finding.root_cause))}</strong>", told(sure)))
    facts = "".join(f'<dt>{name}</dt><dd>{text} <span class="dim">{aside}</span></dd>' for name, text, aside in rows)
    return f'<dl class="facts">{facts}</dl>{_chain(finding, prover)}{_rest(finding)}'


def others(findings: tuple[Finding, ...], prover: Prover, first: int = 2) -> str:
    """Every other finding, folded, with its number from ``first`` on."""
    if not findings:
        return ""
    cards = "".join(_folded(finding, prover, number) for number, finding in enumerate(findings, start=first))
    title = "Notes" if all(finding.severity is Severity.INFO for finding in findings) else "Other findings"
    return f'<section id="others"><h2>{title} <span class="dim">{len(findings)}</span></h2>{cards}</section>'


def _folded(finding: Finding, prover: Prover, number: int) -> str:
    head = (
        f'<span class="dim">F{number}</span> '
        f'<span class="severity {finding.severity.value}">{_SEVERITIES[finding.severity]}</span> '
        f'<span class="symptom">{told(finding.symptom)}</span> '
        f'<span class="dim">{told(finding.contract)} · step {finding.first_step:,}</span>'
    )
    return f'<details class="finding"><summary>{head}</summary>{leading(finding, prover)}</details>'


def _chain(finding: Finding, prover: Prover) -> str:
    cards = [_card(why, prover.of(why), number) for number, why in enumerate(finding.whys, start=1)]
    return f'<ol class="chain">{"".join(cards)}{_end(finding)}</ol>' if cards else ""


def _end(finding: Finding) -> str:
    """Where the chain leads: the root cause, or that there is none to be told."""
    role = "root cause" if finding.confidence >= _SURE else "likely cause"
    label = f'<span class="role">{role}</span>' if finding.root_cause != "undetermined" else ""
    sure = f'<span class="dim">{100 * finding.confidence:.0f} % confident</span>'
    return f'<li class="why end"><h3>{told(words(finding.root_cause))}{label}</h3>{sure}</li>'


def _card(why: Why, proof: Proof, number: int) -> str:
    label = '<span class="role">symptom</span>' if number == 1 else ""
    return (
        f'<li class="why"><h3><span class="number">{number}</span>{told(why.question)}{label}</h3>'
        f"<p>{told(why.finding, 1_200)}</p>{_evidence(proof)}</li>"
    )


def _evidence(proof: Proof) -> str:
    ring = ""
    if proof.first is not None:
        ring = (
            f'<button type="button" class="ring" data-first="{proof.first}" data-last="{proof.last}" '
            f'data-brick="{told(proof.brick)}">Show in the pictures</button>'
        )
    if not proof.ids:
        return ring and f'<div class="evidence">{ring}</div>'
    named = ", ".join(f"<code>{told(identity, 80)}</code>" for identity in proof.ids[:3])
    more = f" and {len(proof.ids) - 3} more" if len(proof.ids) > 3 else ""
    body = "".join(
        f'<tr><td><code>{told(row.identity, 80)}</code></td><td class="n">{row.step:,}</td>'
        f"<td>{told(row.what, 120)}</td><td>{told(row.values, 600)}</td></tr>"
        for row in proof.rows
    )
    head = '<thead><tr><th>id</th><th class="n">step</th><th>record</th><th>values</th></tr></thead>'
    shown = f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>' if body else _NOT_THERE
    return f'<div class="evidence"><details><summary>Evidence {named}{more}</summary>{shown}</details>{ring}</div>'


_NOT_THERE = '<p class="dim">The records themselves are not part of this page.</p>'


def _rest(finding: Finding) -> str:
    rows: list[tuple[str, Any]] = []
    if finding.action:
        rows.append(("Do", f"<strong>{told(finding.action, 1_200)}</strong>"))
    if finding.next_experiment:
        rows.append(("Try", told(finding.next_experiment, 1_200)))
    if finding.obligation:
        rows.append(("Promise", f'{told(finding.obligation, 600)} <span class="dim">would have caught it</span>'))
    if finding.ruled_out:
        out = "".join(
            f"<li>{told(rival.root_cause)} <span>{told(rival.because)}</span></li>" for rival in finding.ruled_out
        )
        rows.append(("Ruled out", f'<ul class="plain">{out}</ul>'))
    if finding.follows:
        rows.append(("Follows", "<br>".join(told(what) for what in finding.follows[:8])))
    facts = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    return f'<dl class="facts do">{facts}</dl>' if facts else ""
