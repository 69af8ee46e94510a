"""The findings of a run as CSV: a row for each, the one to fix first on top.

Enters: a ``Diagnosis``, and its ``Run`` for the places. Leaves: CSV with a header; of a run without findings the header
alone. No cell is a formula to a spreadsheet. The contracts are a table of their own: ``contracts_csv``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brickprof.reports import rows

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

NAME, SUFFIX = "csv", ".csv"
NEEDS_RUN = True
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def text(diagnosis: Diagnosis, run: Run | None = None) -> str:
    return table(rows.FINDING, rows.findings(diagnosis, run))


def render(diagnosis: Diagnosis, console: Console, run: Run | None = None) -> None:
    # Past the console's own layout: a row is one line.
    console.file.write(text(diagnosis, run))


def table(columns: Sequence[str], listed: Iterable[Mapping[str, Any]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    for row in listed:
        writer.writerow([_cell(row[name]) for name in columns])
    return written.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        value = " ".join(f"{name}={item}" for name, item in value.items())
    elif isinstance(value, list):
        value = "; ".join(_item(item) for item in value)
    return harmless(value) if isinstance(value, str) else value


def _item(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    first, second = (str(each) for each in list(item.values())[:2])
    return f"{first} {second}" if first.endswith("?") else f"{first}: {second}"


def harmless(foreign: str) -> str:
    """``foreign`` as a spreadsheet shows it: what it would take for a formula is text."""
    return f"'{foreign}" if foreign.lstrip().startswith(_FORMULA) else foreign


REPORT = render
