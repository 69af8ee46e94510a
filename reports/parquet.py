"""The findings of a run as Parquet: a row for each, with the whys and their evidence as lists.

Enters: a ``Diagnosis``, and its ``Run`` for the places. Leaves: the bytes of a Parquet file, which has the same columns
where there are no findings. The contracts are a table of their own: ``contracts_parquet``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brickprof.reports import rows

if TYPE_CHECKING:
    from brickprof.diagnosis.model import Diagnosis
    from brickprof.run import Run

NAME, SUFFIX = "parquet", ".parquet"
BINARY = True
"""``DATA`` gives bytes; there is nothing to show on a console."""
_NUMBERS = {
    "steps": "int64", "first_step": "int64", "detected_step": "int64", "line": "int64", "confidence": "float64",
}  # fmt: skip


def data(diagnosis: Diagnosis, run: Run | None = None) -> bytes:
    return table(rows.FINDING, rows.findings(diagnosis, run))


def table(columns: Sequence[str], listed: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, _type(name)) for name in columns])
    made = pa.table(
        {name: pa.array([_value(row[name]) for row in listed], _type(name)) for name in columns}, schema=schema
    )
    written = pa.BufferOutputStream()
    pq.write_table(made, written)
    return bytes(written.getvalue().to_pybytes())


def _value(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def _type(name: str) -> Any:
    import pyarrow as pa

    words = pa.list_(pa.string())
    listed = {
        "coordinates": pa.map_(pa.string(), pa.int64()),
        "evidence": words,
        "follows": words,
        "ruled_out": pa.list_(pa.struct([("root_cause", pa.string()), ("because", pa.string())])),
        "whys": pa.list_(
            pa.struct(
                [("question", pa.string()), ("finding", pa.string()), ("brick", pa.string()), ("evidence", words)]
            )
        ),
    }
    return listed[name] if name in listed else pa.type_for_alias(_NUMBERS.get(name, "string"))


DATA = data
