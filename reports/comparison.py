"""Two runs side by side, for people and for programs.

Enters: a ``Comparison``. Leaves: a verdict in one line, the first difference, and a table of what was compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from brickprof.reports import terminal
from brickprof.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.compare import Comparison, Difference, Row

_COLUMNS = ("compared", "values", "differ", "first in step", "at", "A", "B", "largest")


def facts(comparison: Comparison) -> dict[str, Any]:
    told: dict[str, Any] = portable(comparison.to_dict())
    return told


def render(comparison: Comparison, console: Console) -> None:
    lines = [_headline(comparison), *_details(comparison), Text()]
    console.print(terminal.fit(Text("\n").join(lines), console.encoding), soft_wrap=True)
    console.print(_table(comparison))


def portable(value: Any) -> Any:
    """Strict JSON has no NaN and no infinity: they are words."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _headline(comparison: Comparison) -> Text:
    how = f"within {comparison.tolerance:g}" if comparison.tolerance else "to the bit"
    if comparison.first is None:
        text = f"{sum(row.compared for row in comparison.rows):,} values of {_common(comparison)} are equal {how}"
        return Text.assemble(("✓ SAME  ", "bold green"), text)
    first = comparison.first
    joined = " " if first.what == "setting" else " of "
    place = f"{joined}{clean(first.tensor or first.brick)}" if first.tensor or first.brick else ""
    rank = f" on rank {first.rank}" if max(comparison.ranks) > 1 and first.rank >= 0 else ""
    return Text.assemble(
        ("✗ DIFFERENT  ", "bold red"), f"the runs part in step {first.step:,}: the {first.what}{place}{rank}"
    )


def _common(comparison: Comparison) -> str:
    steps = min(comparison.steps)
    return f"{steps:,} step{'s' * (steps != 1)}"


def _details(comparison: Comparison) -> list[Text]:
    told = [("A", comparison.a), ("B", comparison.b)]
    first = comparison.first
    if first is not None:
        told.append(("Where", _where(first)))
        told.append(("Values", f"{_value(first.a)} in A, {_value(first.b)} in B"))
        before = comparison.equal_until
        told.append(("Before", "equal up to step " + f"{before:,}" if before is not None else "nothing was compared"))
        told.append(("Then", f"brickprof show {comparison.a} {first.evidence[0]}"))
    if comparison.steps[0] != comparison.steps[1]:
        told.append(("Note", f"A has {comparison.steps[0]:,} steps and B {comparison.steps[1]:,}"))
    if comparison.ranks[0] != comparison.ranks[1]:
        told.append(
            ("Note", f"A has {comparison.ranks[0]} ranks and B {comparison.ranks[1]}: losses are means over them")
        )
    return [Text(f"  {label:9}{clean(text)}") for label, text in told]


def _where(first: Difference) -> str:
    place = f"{first.tensor} ({first.brick})" if first.brick and first.brick != first.tensor else first.tensor
    return f"step {first.step:,}, {first.what}" + (f", {place}" if place else "")


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in _COLUMNS:
        numbers = name in ("values", "differ", "first in step", "largest")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=name != "at", overflow="ellipsis")
    for row in comparison.rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    first = row.first
    largest = f"{row.largest:.3g}" if row.largest else ""
    if first is None:
        return [row.what, f"{row.compared:,}", "0", "", "", "", "", largest]
    at = clean(first.tensor or first.brick)
    values = [_value(first.a), _value(first.b)]
    return [row.what, f"{row.compared:,}", f"{row.different:,}", f"{first.step:,}", at, *values, largest]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value & 0xFFFFFFFFFFFFFFFF:x}"  # bits
    return clean(str(value))
