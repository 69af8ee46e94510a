"""A run as Parquet: spans, samples and events, partitioned by ``rank=``.

Enters: a run. Leaves: a folder that pandas, DuckDB, Dask, Ray and Spark read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brickprof.run import Run

NAME, SUFFIX = "parquet", ""
TITLE = "spans, samples and events in columns, a folder partitioned by rank"


def write(run: Run, out: Path) -> Path:
    return run.to_parquet(out)
