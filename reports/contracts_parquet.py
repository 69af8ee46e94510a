"""The contracts of a run as Parquet: a row for each, with verdict, observed, threshold and why.

Enters: a ``Diagnosis``. Leaves: the bytes of a Parquet file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brickprof.reports import parquet, rows

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

NAME, SUFFIX = "contracts-parquet", ".contracts.parquet"
BINARY = True


def data(diagnosis: Diagnosis, run: Run | None = None) -> bytes:
    return parquet.table(rows.CONTRACT, rows.contracts(diagnosis))


DATA = data
