"""The tables of the page: contracts, the dearest bricks and kernels, copies with their callers, what a log holds.

Enters: a ``Diagnosis``, and a ``Run`` where there is one. Leaves: HTML, or nothing where there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from brickprof import kernel_names
from brickprof.contracts.verdicts import Verdict
from brickprof.reports import budgets as of_bricks
from brickprof.reports import timeline
from brickprof.reports import transfers as of_lines
from brickprof.reports.page.parts import told
from brickprof.reports.page.sections import section
from brickprof.run.kernel_times import unwritten
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
_MOST_BRICKS, _MOST_SERIES, _MOST_KERNELS, _FIRST_ROWS = 24, 200, 24, 10
_WAYS = {"H2D": "to device", "D2H": "to host", "D2D": "to another device", "pin": "to pinned memory"}
_LEFT_OUT = {"copies": "transfers", "reads and waits": "host_reads"}


def contracts(diagnosis: Diagnosis) -> str:
    """Every contract with its verdict; those that nothing was known of are folded."""
    judged = [result for result in diagnosis.contracts if result.verdict is not Verdict.NOT_EVALUATED]
    unjudged = [result for result in diagnosis.contracts if result.verdict is Verdict.NOT_EVALUATED]
    if not diagnosis.contracts:
        return ""
    judged.sort(key=lambda result: (_ORDER.index(result.verdict), result.id))
    body = _contract_table(judged) if judged else '<p class="dim">None could be judged.</p>'
    broken = any(result.verdict is Verdict.FAIL for result in judged)
    if len(judged) > _MANY and not broken:
        body = f"<details><summary>{len(judged)} judged, none broken</summary>{body}</details>"
    if unjudged:
        body += (
            f"<details><summary>{len(unjudged)} not evaluated: the evidence is not there</summary>"
            f"{_contract_table(unjudged)}</details>"
        )
    picture = '<figure><div id="graph"></div><p class="readout" aria-live="polite"></p></figure>'
    return section("contracts", "Contracts", f"{picture}<div>{body}</div>")


_MANY = 12


def _contract_table(results: Sequence[ContractResult]) -> str:
    rows = [
        [f'<span class="mark {_MARKS[r.verdict][0]}">{_MARKS[r.verdict][1]}</span>', f"<code>{told(r.id)}</code>",
         told(r.observed), told(r.threshold), told(_reason(r), 600)]
        for r in results
    ]  # fmt: skip
    heads = ["verdict", "contract", "observed", "threshold", "why"]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return _table(heads, rows, marks=[f'data-contract="{told(r.id, 40)}"' for r in results])


def _reason(result: ContractResult) -> str:
    """Why, unless that is what was observed in the same words."""
    return "" if result.why == result.observed else result.why


def bricks(run: Run | None) -> str:
    """Where the time of the timed steps went: on the device where any brick was timed there, and on the host."""
    top, on = _dearest(run) if run is not None and _timed(run) else ([], "")
    if not top:
        return ""
    most = max(row["a_step"] for row in top) or 1.0
    rows = [
        [f"<code>{told(row['brick'], 120)}</code>", told(row["phase"]), f"{row['count']:,}", _each_ms(row["host"]),
         *([_each_ms(row["device"])] if on == "device" else []), _bar(row["a_step"], most)]
        for row in top
    ]  # fmt: skip
    device = ["device ms each"] if on == "device" else []
    heads = ("brick", "phase", "times", "host ms each", *device, f"{on} ms in a step")
    note = (
        f"By their time on the {on} in a step, as the bar shows it: means over the steps that were timed. "
        "A block holds what is inside it."
    )
    return section("bricks", "Bricks that cost most", _notes(note) + _cut(heads, rows, (2, 3, 4) if device else (2, 3)))


def _dearest(run: Run) -> tuple[list[dict[str, Any]], str]:
    """The bricks that take most in a step that has them, and whose time that is, the device's or the host's. Not every
    call is timed on a device: those that are stand for all. Kernels have a table of their own."""
    frame = run.spans
    frame = frame[~frame["phase"].isin(["run", "step"]) & ~frame["kind"].isin(["step", "kernel"])]
    frame, mine = frame.assign(device=frame["device_ns"].astype("float64")), ["brick", "phase"]
    found = frame.groupby(mine, sort=False).agg(
        host=("host_ns", "mean"), device=("device", "mean"), count=("host_ns", "size")
    )
    steps = frame.drop_duplicates([*mine, "rank", "step"]).groupby(mine, sort=False).size()
    on = "device" if found["device"].gt(0).any() else "host"
    found["a_step"] = found[on].fillna(0.0) * found["count"] / steps
    top = found.sort_values(["a_step", "host"], ascending=False).head(_MOST_BRICKS).reset_index()
    return [{str(name): value for name, value in row.items()} for row in top.to_dict("records")], on


def _each_ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}" if ns >= 0 else "-"


def _bar(ns: float, most: float) -> str:
    share = ns / most
    return f'<meter min="0" max="1" value="{share:.3f}">{share:.0%}</meter> {ns / 1e6:,.3f}' if ns > 0 else "-"


def budgets(diagnosis: Diagnosis) -> str:
    """The bricks that are over the budget that somebody declared, and those that were traced because they strayed."""
    over, strayed = of_bricks.over(diagnosis.run), of_bricks.unsteady(diagnosis.run)
    if not over and not strayed:
        return ""
    rows = [
        [f"<code>{told(of_bricks.name(row), 120)}</code>", told(row.get("on", "")), of_bricks.us(row.get("us")),
         of_bricks.us(row.get("budget_us")), of_bricks.share(row.get("efficiency")),
         f"{of_bricks.us(row.get('over'))} of {of_bricks.us(row.get('steps'))}"]
        for row in over
    ]  # fmt: skip
    heads = ("over its declared budget", "on", "us", "budget us", "efficiency", "steps over it")
    body = _table(heads, rows, numbers=(2, 3, 4, 5)) if rows else ""
    return section("budgets", "Budgets", body + "".join(f'<p class="dim">{told(line)}</p>' for line in strayed))


def _cut(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    """The first rows, and the others folded."""
    if len(rows) <= _FIRST_ROWS + 2:
        return _table(heads, rows, numbers)
    rest = _table(heads, rows[_FIRST_ROWS:], numbers)
    more = f"<details><summary>{len(rows) - _FIRST_ROWS} more</summary>{rest}</details>"
    return _table(heads, rows[:_FIRST_ROWS], numbers) + more


def kernels(run: Run | None, diagnosis: Diagnosis) -> str:
    """The kernels by their time on the device: how often, how long, in which block, and from which line."""
    found = timeline.kernels(run) if run is not None and _timed(run) else []
    lacking = timeline.kernels_lacking(found, diagnosis.run)
    if run is None or not (found or lacking):
        return ""
    rows = found[:_MOST_KERNELS]
    heads = _notes(lacking, timeline.covered(rows), timeline.without_span(diagnosis.run))
    body = heads + (_kernel_table(run, rows) if rows else "")
    body += _notes(timeline.left_out(rows, len(found) - len(rows)) if len(found) > len(rows) else "")
    return section("kernels", "Kernels by their time on the device", body)


def _notes(*said: str) -> str:
    return "".join(f'<p class="dim">{told(each, 300)}</p>' for each in said if each)


def _kernel_table(run: Run, found: list[dict[str, Any]]) -> str:
    blocks, lines = _launchers(run), {row["kernel"]: row["site"] for row in found if row["site"]} | _callers(run)
    rows = [
        [f'<code title="{told(name, 300)}">{told(kernel_names.short(name), 80)}</code>',
         f"{row['share']:.1%}", f"{row['mean_us']:,.1f}", f"{row['a_step']:,.1f}",
         f"<code>{told(blocks.get(name, ''), 80)}</code>", f"<code>{told(lines.get(name, ''), 80)}</code>"]
        for row in found
        for name in [row["kernel"]]
    ]  # fmt: skip
    heads = ["kernel", "of the kernels' time", "us each", "a step", "most in", "launched from"]
    if not lines:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return _cut(heads, rows, (1, 2, 3))


def _timed(run: Run) -> bool:
    """Whether anything was: to make a frame of nothing loads pandas all the same."""
    return any(part.spans[0].num_rows for part in run.parts)


def _launchers(run: Run) -> dict[str, str]:
    """The block in which each kernel spent most of its time."""
    frame = run.spans
    names = dict(zip(zip(frame["rank"], frame["id"], strict=True), frame["brick"], strict=True))
    mine = frame[(frame["kind"] == "kernel") & frame["device_ns"].notna()]
    spent: dict[str, dict[str, int]] = {}
    for rank, kernel, parent, ns in zip(mine["rank"], mine["brick"], mine["parent"], mine["device_ns"], strict=True):
        block = names.get((rank, parent), "")
        sums = spent.setdefault(kernel, {})
        sums[block] = sums.get(block, 0) + int(ns)
    for each in (one for part in run.parts for one in unwritten(part, qualified=run.qualified)):
        block = each.block.name(qualified=run.qualified) if each.block is not None else ""
        sums = spent.setdefault(each.name, {})
        sums[block] = sums.get(block, 0) + each.device_ns
    return {kernel: max(sums, key=lambda block: sums[block]) for kernel, sums in spent.items()}


def _callers(run: Run) -> dict[str, str]:
    """The line that each kernel was last launched from most, where a hook heard it."""
    lines: dict[str, str] = {}
    for part in run.parts:
        for event in part.events:
            rows = event.fields.get("kernels") if event.kind == "launches" else None
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, list) and len(row) >= 3:
                    lines[str(row[0])] = str(row[2])
    return lines


def moved(diagnosis: Diagnosis) -> str:
    """The copies and host reads of a usual step, with the line that asked for each."""
    told_of = [(row, True) for row in _dicts(diagnosis.run.get("transfers"))]
    told_of += [(row, False) for row in _dicts(diagnosis.run.get("host_reads"))]
    if not told_of:
        return ""
    rows = [_copy(row) if copy else _read(row) for row, copy in told_of]
    heads = ("what", "asked for in", "in steps looked at", "times in one", "bytes", "host ms", "memory",
             "host waits?")  # fmt: skip
    more = [(what, of_lines.left_out(diagnosis.run, name)) for what, name in _LEFT_OUT.items()]
    return _table(heads, rows, numbers=(2, 3, 4, 5)) + _notes(*(f"{what}: {said}" for what, said in more if said))


def _dicts(rows: Any) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list | tuple) else []


def _copy(row: dict[str, Any]) -> list[str]:
    way = str(row.get("direction"))
    sides = way in ("H2D", "D2H")
    memory = ("pinned" if row.get("pinned") else "pageable") if sides else ""
    waits = ("yes" if row.get("blocking") else "no") if sides else ""
    what = f"copy {told(_WAYS.get(way, way), 40)}"
    return [what, *_where(row), _size(row.get("bytes")), _host_ms(row), memory, waits]


def _read(row: dict[str, Any]) -> list[str]:
    waits = row.get("waits_for")
    what = f"wait for {told(waits, 20)}" if waits else "read of a device tensor"
    return [what, *_where(row), "-", _host_ms(row), "", "yes"]


def _where(row: dict[str, Any]) -> list[str]:
    count = row.get("count")
    times = f"{float(count):,.4g}" if isinstance(count, int | float) else "-"
    return [f"<code>{told(row.get('site') or '(a thread)', 80)}</code>", of_lines.often(row) or "-", times]


def _host_ms(row: dict[str, Any]) -> str:
    ns = row.get("ns")
    return f"{float(ns) / 1e6:,.3f}" if isinstance(ns, int | float) else "-"


def _size(value: Any) -> str:
    if not isinstance(value, int | float):
        return "-"
    size = float(value)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


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
    return section("holdings", "What the log holds", body)


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


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), marks: Sequence[str] = ()
) -> str:
    """A table of cells that are HTML already; ``marks`` are attributes of its rows."""
    kind = [' class="n"' if place in numbers else "" for place in range(len(heads))]
    head = "".join(f'<th scope="col"{kind[place]}>{name}</th>' for place, name in enumerate(heads))
    body = "".join(
        (f"<tr {marks[at]}>" if marks else "<tr>")
        + "".join(f"<td{kind[place]}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>"
        for at, row in enumerate(rows)
    )  # fmt: skip
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
