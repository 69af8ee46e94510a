"""MLflow's store in SQLite (``mlflow.db``).

Enters: a database with the tables ``runs``, ``metrics`` and ``params``, opened so that nothing in it can be changed.
Leaves: the rows of one run; of several, the one that was started last, and a note that there are more.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import tracking
from brickprof.logs.reading.model import Fact, Head, Item
from brickprof.logs.reading.source import Source
from brickprof.logs.reading.tracking import Metric, Stored
from brickprof.text import clean

_MAGIC = b"SQLite format 3\x00"
_TABLES = (b"CREATE TABLE metrics", b"CREATE TABLE runs", b'CREATE TABLE "metrics"', b'CREATE TABLE "runs"')
_MOST_VALUES = 5_000_000
_MOST_PARAMS = 2_000
_RUNS = """
    SELECT run_uuid, name, status FROM runs WHERE run_uuid IN (SELECT run_uuid FROM metrics)
    ORDER BY start_time DESC, run_uuid LIMIT 10000
"""
_VALUES = """
    SELECT key, CASE WHEN is_nan THEN NULL ELSE value END, timestamp, step FROM metrics WHERE run_uuid = ?
    ORDER BY timestamp, step LIMIT ?
"""


class MLflowDatabase:
    name = "mlflow-db"
    title = "MLflow, a store in SQLite"

    def sniff(self, head: Head) -> float:
        if not head.start.startswith(_MAGIC):
            return 0.0
        return 0.9 if any(table in head.start for table in _TABLES) else 0.3 if "mlflow" in head.name else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        if source.is_pipe or source.packed:
            raise UnreadableInput(f"{clean(source.path)} is a database.", "Unpack it into a file of its own.")
        address = f"{Path(source.path).resolve().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as base:
                base.text_factory = lambda text: text.decode("utf-8", "replace")
                runs = base.execute(_RUNS).fetchall()
                if not runs:
                    yield Fact("note", 1, {"text": "no run in this store has logged a metric"})
                    return
                if len(runs) > 1:
                    text = f"of {len(runs)} runs in this store, this is the one that was started last"
                    yield Fact("note", 1, {"text": text})
                yield from tracking.items(_stored(base, *runs[0]))
        except sqlite3.Error as error:
            raise UnreadableInput(f"{clean(source.path)} is no store of MLflow: {clean(error)}.") from None


def _stored(base: sqlite3.Connection, run: str, name: str, status: str) -> Stored:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for key, value, time, step in base.execute(_VALUES, (run, _MOST_VALUES)):
        if all(isinstance(one, int | float | None) for one in (value, time, step)):
            found.setdefault(str(key), []).append((float(time or 0), float(step or 0), _value(value)))
    columns = {key: np.array(values, dtype=np.float64).T for key, values in found.items()}
    params = base.execute("SELECT key, value FROM params WHERE run_uuid = ? LIMIT ?", (run, _MOST_PARAMS)).fetchall()
    return Stored(
        {key: Metric(*column) for key, column in columns.items()},
        {"run_name": clean(name or ""), **{clean(key, limit=200): clean(value) for key, value in params}},
        str(status or ""),
    )


def _value(stored: float | None) -> float:
    """MLflow keeps a NaN as a mark beside the value, and infinity as the largest number there is."""
    if stored is None:
        return math.nan
    return math.copysign(math.inf, stored) if abs(stored) >= sys.float_info.max else float(stored)


READER = MLflowDatabase()
