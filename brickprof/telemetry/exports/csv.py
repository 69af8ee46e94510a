"""A run as CSV: each of its tables in a file.

Enters: a run. Leaves: a folder with ``loss.csv``, ``samples.csv`` and the others. A name that a spreadsheet would take
for a formula gets an apostrophe in front.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from brickprof.telemetry.files import whole_text

if TYPE_CHECKING:
    import pandas as pd

    from brickprof.run import Run

NAME, SUFFIX = "csv", ""
TITLE = "a folder of tables: loss, lr, spans, samples, events, bricks, tensors, ranks"
_TABLES = ("spans", "samples", "events", "loss", "lr", "bricks", "tensors", "ranks")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(run: Run, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    for name in _TABLES:
        with whole_text(out / f"{name}.csv") as stream:
            _harmless(getattr(run, name)).to_csv(stream, index=False, lineterminator="\n")
    return out


def harmless(text: str) -> str:
    """``text`` as a cell that no spreadsheet runs."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _harmless(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    words = [name for name in table if not pd.api.types.is_numeric_dtype(table[name].dtype)]
    words = [name for name in words if not pd.api.types.is_datetime64_any_dtype(table[name].dtype)]
    return table.assign(**{str(name): table[name].map(_cell) for name in words})


def _cell(value: object) -> object:
    return harmless(value) if isinstance(value, str) else value
