"""What a log holds, and what it cannot tell.

Enters: a judged run. Leaves: styled text: each series with its role, its points and its steps; lines that said nothing;
and what no log can say, with what would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from brickprof.reports import terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

_MOST_SERIES = 12
_MOST_REASONS = 4


def render(run: Any, console: Console) -> None:
    show = console.print
    show(
        terminal.fit(Text(f"\n  What the log holds    {clean(run.format)}, {_counted(run)}", "bold"), console.encoding)
    )
    if run.holds:
        show(_table(run.holds[:_MOST_SERIES], console))
    if len(run.holds) > _MOST_SERIES:
        show(Text(f"  and {len(run.holds) - _MOST_SERIES} more series; --json has them all", "dim"))
    for line in (*notes(run), *untold(run)):
        show(terminal.fit(Text(f"  {line}"), console.encoding), soft_wrap=True)


def _counted(run: Any) -> str:
    told = [f"{run.rows:,} row{'s' * (run.rows != 1)}", f"steps by {clean(run.steps_by)}"]
    if len(run.files) > 1:
        told.append(f"{len(run.files)} files")
    return ", ".join(told)


def _table(holds: Iterable[dict[str, Any]], console: Console) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
    for name in ("series", "role", "points", "first step", "last step", "gaps"):
        table.add_column(name, justify="left" if name in ("series", "role") else "right", overflow="fold")
    for row in holds:
        name = clean(row["name"], limit=60)
        table.add_row(
            terminal.fit(Text(name), console.encoding), Text(row["role"]), f"{row['points']:,}",
            f"{row['first_step']:,}", f"{row['last_step']:,}", f"{row['gaps']:,}" if row["gaps"] else "-",
        )  # fmt: skip
    return table


def notes(run: Any) -> list[str]:
    """What was odd about the file."""
    told = []
    if run.unread:
        shown = "; ".join(f"{line}: {clean(text, limit=60)}" for line, text in run.examples[:2])
        told.append(f"Unread     {run.unread:,} line{'s' * (run.unread != 1)} said nothing to this reader" + (
            f" ({shown})" if shown else ""))  # fmt: skip
    if run.attempts > 1:
        told.append(f"Attempts   {run.attempts}: the steps went back {run.attempts - 1:,} times; the later one counts")
    if run.repeated:
        told.append(f"Repeated   {run.repeated:,} rows tell the step of the row before them")
    if run.late:
        told.append(f"Late       {run.late:,} rows came after a row of a later step")
    told += [f"Damage     {clean(text)}" for text in run.damage[:3]]
    return told


def untold(run: Any) -> list[str]:
    """What could not be judged from a log, by what is missing."""
    open_ones = run.diagnosis.run.get("not_evaluated") or {}
    if not open_ones:
        return []
    reasons: dict[str, list[str]] = {}
    for contract, why in open_ones.items():
        reasons.setdefault(clean(why), []).append(clean(contract))
    lines = [f"Cannot tell  {len(open_ones)} contracts need what this log does not hold; `brickprof run` records it:"]
    ranked = sorted(reasons.items(), key=lambda item: -len(item[1]))
    for why, contracts in ranked[:_MOST_REASONS]:
        named = ", ".join(contracts[:3]) + (f" and {len(contracts) - 3} more" if len(contracts) > 3 else "")
        lines.append(f"    {why or 'nothing of it was recorded'}    {named}")
    if len(ranked) > _MOST_REASONS:
        left = sum(len(contracts) for _, contracts in ranked[_MOST_REASONS:])
        lines.append(f"    and {left} for other reasons; --json has them all")
    return lines
