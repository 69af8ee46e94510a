"""What a notebook shows of a diagnosis, a finding, a run, several diagnoses, a comparison.

Enters: those. Leaves: HTML for the output of a cell: no script, no request, every foreign string escaped, its size
bounded. A diagnosis whose run is still at hand (its folder, or its log) also shows the values of its evidence and
pictures; without it, the words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from brickprof.contracts.verdicts import Severity, Verdict
from brickprof.diagnosis.words import words
from brickprof.errors import BrickprofError
from brickprof.notebook import pictures
from brickprof.notebook.style import CLASS, STYLE
from brickprof.notebook.words import MARKS, SEVERITIES, size, span
from brickprof.reports import terminal
from brickprof.reports.page.curves import curves
from brickprof.reports.page.heat import heat_map
from brickprof.reports.page.parts import told
from brickprof.reports.page.proof import Prover

if TYPE_CHECKING:
    from brickprof.diagnosis.compare import Comparison
    from brickprof.diagnosis.model import Diagnosis, Finding, Why
    from brickprof.run import Run

_TONES = {Verdict.PASS: "good", Verdict.FAIL: "bad"}
_PROVEN, _OTHERS, _RUNS = 3, 12, 200
_ROWS = 12
_MOST_BYTES = 512 * 2**20
"""Of a recorded run, all ranks together: a larger one is shown in words."""
_MOST_LOG = 64 * 2**20


def diagnosis(given: Diagnosis) -> str:
    run = _run_of(given)
    prover = Prover(run)
    first, rest = _apart(given)
    left = _finding(first, prover) if first is not None else ""
    right = _pictures(run, given, folded=not left) if run is not None else ""
    body = (f'<div class="words">{left}</div>' if left else "") + right
    return _card(f'{_head(given)}<div class="split">{body}</div>{_others(rest, prover)}{_tail(given)}')


def finding(given: Finding) -> str:
    head = f'<p class="head">{_severity(given)} {told(given.symptom, 1_000)}</p>'
    return _card(head + _finding(given, Prover(None)))


def run(given: Run) -> str:
    """Who it is, how long, what was recorded; and the course of its loss."""
    at_hand(given)
    facts = [("steps", f"{given.steps:,}"), ("ranks", f"{len(given.ranks):,}"), *_about(given)]
    rows = "".join(f"<span>{told(name)}</span><span>{text}</span>" for name, text in facts)
    head = f'<p class="head">Run <code>{told(given.meta.run_id, 80)}</code> {told(given.meta.script, 120)}</p>'
    hint = (
        "<code>.loss</code> <code>.grads</code> <code>.spans</code> <code>.events</code> are DataFrames; "
        "<code>.plot.loss()</code> draws; <code>brickprof.diagnose(run)</code> judges."
    )
    words_ = f'<div class="words"><div class="facts">{rows}</div><p class="dim">{hint}</p></div>'
    drawn = pictures.curves(curves(given, most=pictures.MOST_POINTS))
    picture = f'<div class="pictures">{drawn}</div>' if drawn else ""
    return _card(f'{head}<div class="split">{words_}{picture}</div>')


def several(given: Sequence[Diagnosis]) -> str:
    """A line a run."""
    rows = [
        [f"<code>{told(one.run.get('name') or one.run.get('id') or 'run', 120)}</code>",
         told(one.run.get("format") or one.run.get("source") or ""), f"{one.run.get('steps') or 0:,}", _mark(one),
         told(one.findings[0].symptom) if one.findings else ""]
        for one in given[:_RUNS]
    ]  # fmt: skip
    more = f'<p class="dim">and {len(given) - _RUNS:,} more</p>' if len(given) > _RUNS else ""
    table = _table(("run", "format", "steps", "verdict", "what happened"), rows, numbers=(2,))
    return _card(f'<p class="head">{len(given):,} runs</p>{table}{more}')


def comparison(given: Comparison) -> str:
    """Where two runs part."""
    first = given.first
    if first is None:
        head = '<span class="good">✓ SAME</span> everything that was compared is equal'
    else:
        place = first.tensor or first.brick
        of = f" of {told(place)}" if place else ""
        head = f'<span class="bad">✗ DIFFERENT</span> the runs part in step {first.step:,}: the {told(first.what)}{of}'
    rows = [
        [told(row.what), f"{row.compared:,}", f"{row.different:,}", "-" if row.first is None else f"{row.first.step:,}",
         "-" if row.largest is None else f"{row.largest:.3g}"]
        for row in given.rows
    ]  # fmt: skip
    table = _table(("compared", "values", "differ", "first in step", "largest"), rows, numbers=(1, 2, 3, 4))
    who = f'<p class="dim">A {told(given.a)}, B {told(given.b)}; tolerance {given.tolerance:g}</p>'
    return _card(f'<p class="head">{head}</p>{who}{table}')


def _card(body: str) -> str:
    return f'<div class="{CLASS}">{STYLE}{body}</div>'


# -- a diagnosis


def _head(given: Diagnosis) -> str:
    line = terminal.text(given).split("\n", 1)[0]
    mark, _, rest = line.partition("  ")
    headline, _, aside = rest.partition("    ")
    tone = _TONES.get(given.verdict, "open")
    beside = f' <span class="dim">{told(aside, 600)}</span>' if aside else ""
    return f'<p class="head"><span class="{tone}">{told(mark)}</span> {told(headline, 1_000)}</p>{_small(beside)}'


def _small(text: str) -> str:
    return f"<p>{text}</p>" if text else ""


def _mark(given: Diagnosis) -> str:
    tone = _TONES.get(given.verdict, "open")
    return f'<span class="{tone}">{MARKS.get(given.verdict, "○")} {told(given.verdict.value.replace("_", " "))}</span>'


def _apart(given: Diagnosis) -> tuple[Finding | None, tuple[Finding, ...]]:
    """The finding to fix first, and the others; a mere note is never the first."""
    found = given.findings
    return (found[0], found[1:]) if found and found[0].severity is not Severity.INFO else (None, found)


def _others(rest: tuple[Finding, ...], prover: Prover) -> str:
    folded = []
    for number, one in enumerate(rest[:_OTHERS], start=1):
        shown = _finding(one, prover if number < _PROVEN else Prover(None))
        head = f'{_severity(one)} {told(one.symptom)} <span class="dim">step {one.first_step:,}</span>'
        folded.append(f'<details class="finding"><summary>{head}</summary>{shown}</details>')
    if len(rest) > _OTHERS:
        folded.append(f'<p class="dim">and {len(rest) - _OTHERS:,} more in <code>.findings</code></p>')
    return "".join(folded)


def _tail(given: Diagnosis) -> str:
    of = [contract.verdict for contract in given.contracts]
    broken = given.verdict is Verdict.FAIL  # what else there is to say stands in the first line
    parts = [f"{of.count(verdict):,} {word}" for verdict, word in _COUNTED if of.count(verdict)] if broken else []
    facts = [f"contracts: {', '.join(parts)}"] if parts else []
    if isinstance(folder := given.run.get("folder"), str):
        facts.append(f"recorded in <code>{told(folder, 300)}</code>")
    return f'<p class="dim">{" · ".join(facts)}</p>' if facts else ""


_COUNTED = (
    (Verdict.FAIL, "broken"), (Verdict.PASS, "held"), (Verdict.VACUOUS, "vacuous"),
    (Verdict.NOT_EVALUATED, "not evaluated"),
)  # fmt: skip


_at_hand: WeakValueDictionary[str, Run] = WeakValueDictionary()


def at_hand(run: Run) -> None:
    """Somebody holds this run: a diagnosis of it need not read it again."""
    if run.path is not None:
        _at_hand[str(run.path)] = run


def _run_of(given: Diagnosis) -> Run | None:
    """The run that was judged, where it still lies where it lay and is no burden to read."""
    from brickprof.run import Run

    folder = given.run.get("folder")
    try:
        if isinstance(folder, str) and 0 < _bytes(Path(folder)) < _MOST_BYTES:
            opened, held = Run.open(Path(folder)), _at_hand.get(folder)
            if opened.meta.run_id != given.run.get("id"):
                return None
            return held if held is not None and held.files == opened.files else opened
        files = [file for file in given.run.get("files") or () if isinstance(file, str) and os.path.isfile(file)]
        if files and sum(os.path.getsize(file) for file in files) < _MOST_LOG:
            return Run.from_log(files, format=given.run.get("format") or "")
    except (BrickprofError, OSError, ValueError):
        return None
    return None


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _pictures(found: Run, given: Diagnosis, *, folded: bool) -> str:
    """The course of the run, and its gradients by layer; where nothing is wrong the latter need not be looked at."""
    serious = [one for one in given.findings if one.severity is not Severity.INFO]
    marks = [(f"F{number}", one.first_step) for number, one in enumerate(serious[:2], start=1)]
    drawn = pictures.curves(curves(found, [step for _, step in marks], pictures.MOST_POINTS), marks)
    cells = heat_map(found, serious[0].first_step if serious else None)
    if cells is not None:
        heat = pictures.heat(cells, (serious[0].brick, serious[0].first_step) if serious else None)
        drawn += f"<details><summary>Gradients by layer</summary>{heat}</details>" if folded else heat
    return f'<div class="pictures">{drawn}</div>' if drawn else ""


# -- a finding


def _severity(given: Finding) -> str:
    tone = {Severity.ERROR: "bad", Severity.WARNING: "open"}.get(given.severity, "dim")
    return f'<span class="{tone}">{SEVERITIES[given.severity]}</span>'


def _finding(given: Finding, prover: Prover) -> str:
    rows = [("What", told(given.symptom, 1_000), told(given.contract))]
    place = f"{told(given.brick)}, " if given.brick else ""
    rows.append(("Where", f"{place}step {given.first_step:,}", told(f"{given.nature} · {given.scope}")))
    if given.root_cause:
        sure = f"{given.root_cause} · {100 * given.confidence:.0f} %"
        rows.append(("Cause", f"<strong>{told(words(given.root_cause))}</strong>", told(sure)))
    facts = "".join(
        f'<span>{name}</span><span>{text} <span class="dim">{beside}</span></span>' for name, text, beside in rows
    )
    chain = "".join(_why(why, number, prover) for number, why in enumerate(given.whys, start=1))
    end = f'<li class="end"><p class="why">{told(words(given.root_cause))}</p></li>' if given.root_cause else ""
    whys = f'<ol class="whys">{chain}{end}</ol>' if chain else ""
    return f'<div class="facts">{facts}</div>{whys}{_rest(given)}'


def _why(why: Why, number: int, prover: Prover) -> str:
    answer = f'<p class="why">{number}. {told(why.question)}</p><p>{told(why.finding, 1_200)}</p>'
    return f"<li>{answer}{_evidence(why, prover)}</li>"


def _evidence(why: Why, prover: Prover) -> str:
    if not why.evidence:
        return ""
    named = ", ".join(f"<code>{told(identity, 80)}</code>" for identity in why.evidence[:3])
    more = f" and {len(why.evidence) - 3:,} more" if len(why.evidence) > 3 else ""
    rows = [
        [f"<code>{told(row.identity, 80)}</code>", f"{row.step:,}", told(row.what, 120), told(row.values, 600)]
        for row in prover.of(why).rows[:_ROWS]
    ]
    hint = f'<p class="dim">The records: <code>run.find("{told(why.evidence[0], 80)}")</code></p>'
    shown = _table(("id", "step", "record", "values"), rows, numbers=(1,)) if rows else hint
    return f"<details><summary>Evidence {named}{more}</summary>{shown}</details>"


def _advice(given: Finding) -> tuple[tuple[str, str], ...]:
    return ("Do", given.action), ("Try", given.next_experiment), ("Promise", given.obligation)


def _rest(given: Finding) -> str:
    rows = [(name, told(text, 1_200)) for name, text in _advice(given) if text]
    facts = "".join(
        f"<span>{name}</span><span><strong>{text}</strong></span>"
        if name == "Do"
        else f"<span>{name}</span><span>{text}</span>"
        for name, text in rows
    )
    out = "".join(
        f'<p><code>{told(rival.root_cause, 80)}</code> <span class="dim">{told(rival.because)}</span></p>'
        for rival in given.ruled_out[:20]
    )
    ruled = f"<details><summary>{len(given.ruled_out)} causes ruled out</summary>{out}</details>" if out else ""
    follows = "".join(f"<p>{told(what)}</p>" for what in given.follows[:20])
    after = f"<details><summary>{len(given.follows)} more follow from it</summary>{follows}</details>"
    return (f'<div class="facts">{facts}</div>' if facts else "") + ruled + (after if follows else "")


# -- a run


def _about(given: Run) -> Iterable[tuple[str, str]]:
    times = [event.time_ns for part in given.parts for event in part.events if event.time_ns]
    if times and max(times) > min(times):
        yield "lasted", told(span((max(times) - min(times)) / 1e9))
    if given.meta.started_ns:
        import time

        yield "began", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(given.meta.started_ns / 1e9))
    yield "level", told(given.meta.level or "-")
    on_disk = _bytes(given.path) if given.path is not None else 0
    yield "recorded", _recorded(given, on_disk)
    if given.path is not None:
        yield "on disk", f"{size(on_disk)} in <code>{told(given.path, 300)}</code>"
    if given.overhead is not None:
        yield "cost of looking", f"{given.overhead:.1%} of the steps"
    if on_disk < _MOST_BYTES and given.damage:
        yield "damaged", "<br>".join(told(damage) for damage in given.damage[:4])


def _recorded(given: Run, on_disk: int) -> str:
    """Numbers of events, samples and spans; of a large run only the first, which are read anyway."""
    parts = [f"{sum(len(part.events) for part in given.parts):,} events"]
    if on_disk < _MOST_BYTES:
        parts += [f"{sum(part.samples[0].num_rows for part in given.parts):,} samples of tensors",
                  f"{sum(part.spans[0].num_rows for part in given.parts):,} spans of bricks"]  # fmt: skip
    return told(" · ".join(parts))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already."""
    kind = [' class="n"' if place in numbers else "" for place in range(len(heads))]
    head = "".join(f"<th{kind[place]}>{name}</th>" for place, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[place]}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
