"""The contracts of a run as CSV: a row for each, with verdict, observed, threshold and why.

Enters: a ``Diagnosis``. Leaves: CSV with a header. No cell is a formula to a spreadsheet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brickprof.reports import csv, rows

if TYPE_CHECKING:
    from rich.console import Console

    from brickprof.diagnosis.model import Diagnosis

NAME, SUFFIX = "contracts-csv", ".contracts.csv"


def text(diagnosis: Diagnosis) -> str:
    return csv.table(rows.CONTRACT, rows.contracts(diagnosis))


def render(diagnosis: Diagnosis, console: Console) -> None:
    # Past the console's own layout: a row is one line.
    console.file.write(text(diagnosis))


REPORT = render
