"""The tables of the page: contracts, the bricks that cost most, what a log holds.

Enters: a ``Diagnosis``, and a ``Run`` where there is one. Leaves: HTML, or nothing where there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from brickprof.contracts.verdicts import Verdict
from brickprof.reports import transfers
from brickprof.reports.page.parts import told
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.contracts.verdicts import ContractResult
    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

_MARKS = {
    Verdict.FAIL: ("bad", "✗ FAIL"), Verdict.PASS: ("good", "✓ PASS"), Verdict.VACUOUS: ("open", "○ VACUOUS"),
    Verdict.NOT_EVALUATED: ("open", "○ NOT EVALUATED"),
}  # fmt: skip
_ORDER = list(_MARKS)
_MOST_BRICKS, _MOST_SERIES = 20, 200


def contracts(diagnosis: Diagnosis) -> str:
    """Every contract with its verdict; those that nothing was known of are folded."""
    judged = [result for result in diagnosis.contracts if result.verdict is not Verdict.NOT_EVALUATED]
    unjudged = [result for result in diagnosis.contracts if result.verdict is Verdict.NOT_EVALUATED]
    if not diagnosis.contracts:
        return ""
    judged.sort(key=lambda result: (_ORDER.index(result.verdict), result.id))
    body = _contract_table(judged) if judged else '<p class="dim">None could be judged.</p>'
    if unjudged:
        body += (
            f"<details><summary>{len(unjudged)} not evaluated: the evidence is not there</summary>"
            f"{_contract_table(unjudged)}</details>"
        )
    return _section("contracts", "Contracts", body)


def _contract_table(results: Iterable[ContractResult]) -> str:
    rows = [
        [f'<span class="mark {_MARKS[r.verdict][0]}">{_MARKS[r.verdict][1]}</span>', f"<code>{told(r.id)}</code>",
         told(r.observed), told(r.threshold), told(r.why, 600)]
        for r in results
    ]  # fmt: skip
    return _table(("verdict", "contract", "observed", "threshold", "why"), rows)


def bricks(run: Run | None) -> str:
    """Where the time of the timed steps went, on the host and on the device."""
    frame = run.spans if run is not None else None
    if frame is None or frame.empty:
        return ""
    frame = frame[~frame["phase"].isin(["run", "step"]) & (frame["kind"] != "step")]
    times = frame.assign(device=frame["device_ns"].astype("float64")).groupby(["brick", "phase"], sort=False)
    grouped = times.agg(host=("host_ns", "sum"), device=("device", "sum"), count=("host_ns", "size")).reset_index()
    top = grouped.sort_values("host", ascending=False).head(_MOST_BRICKS)
    if top.empty:
        return ""
    most = max(float(top["host"].max()), 1.0)
    rows = [
        [f"<code>{told(brick, 120)}</code>", told(phase), f"{count:,}", f"{host / count / 1e6:,.3f}",
         f"{device / count / 1e6:,.3f}" if device > 0 else "-",
         f'<meter min="0" max="1" value="{host / most:.3f}">{host / most:.0%}</meter>']
        for brick, phase, host, device, count in _plain(top)
    ]  # fmt: skip
    heads = ("brick", "phase", "times", "host ms", "device ms", "of the dearest")
    note = '<p class="dim">Means over the steps that were timed. A block holds what is inside it.</p>'
    return _section("bricks", "Bricks that cost most", note + _table(heads, rows, numbers=(2, 3, 4)))


def _plain(frame: Any) -> Iterable[tuple[str, str, float, float, int]]:
    return zip(*(frame[name].tolist() for name in ("brick", "phase", "host", "device", "count")), strict=True)


def moved(diagnosis: Diagnosis) -> str:
    lines = transfers.lines(diagnosis.run)
    text = "\n".join(told(line, 300) for line in lines)
    return _section("transfers", "Transfers and host reads, in a step", f"<pre>{text}</pre>") if lines else ""


def holdings(run: Run | None, diagnosis: Diagnosis) -> str:
    """What a log holds: each series with its role, its points and its steps; lines that said nothing."""
    series, notes = _of_diagnosis(diagnosis) or _of_events(run)
    if not series and not notes:
        return ""
    rows = [
        [f"<code>{told(row.get('name', ''), 120)}</code>", told(row.get("role", "")),
         *(_count(row.get(name)) for name in ("points", "first_step", "last_step", "gaps"))]
        for row in series[:_MOST_SERIES]
    ]  # fmt: skip
    body = _table(("series", "role", "points", "first step", "last step", "gaps"), rows, numbers=(2, 3, 4, 5))
    body += f'<p class="dim">and {len(series) - _MOST_SERIES:,} more</p>' if len(series) > _MOST_SERIES else ""
    body += "".join(f'<p class="dim">{told(note)}</p>' for note in notes)
    return _section("holdings", "What the log holds", body)


def _of_diagnosis(diagnosis: Diagnosis) -> tuple[list[dict[str, Any]], list[str]] | None:
    log = diagnosis.run.get("log")
    if not isinstance(log, dict) or diagnosis.run.get("format") == "brickprof":
        return None
    notes = [f"{log['unread']:,} lines said nothing to this reader"] if log.get("unread") else []
    if (attempts := log.get("attempts", 1)) > 1:
        notes.append(f"{attempts} attempts: the steps went back; the later one counts")
    return list(log.get("series") or ()), notes + [f"Damage: {clean(text)}" for text in log.get("damage") or ()]


def _of_events(run: Run | None) -> tuple[list[dict[str, Any]], list[str]]:
    events = [event for part in run.parts for event in part.events if event.kind == "log"] if run is not None else []
    told_of = [row for event in events for row in event.fields.get("series") or () if isinstance(row, dict)]
    names: dict[str, str] = {"count": "points", "first": "first_step", "last": "last_step"}
    series = [{names.get(str(key), str(key)): value for key, value in row.items()} for row in told_of]
    unread = sum(event.fields.get("unread") or 0 for event in events)
    return series, [f"{unread:,} lines said nothing to this reader"] if unread else []


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already."""
    kind = [' class="n"' if place in numbers else "" for place in range(len(heads))]
    head = "".join(f'<th scope="col"{kind[place]}>{name}</th>' for place, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[place]}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(identity: str, title: str, body: str) -> str:
    return f'<section id="{identity}"><h2>{title}</h2>{body}</section>'
