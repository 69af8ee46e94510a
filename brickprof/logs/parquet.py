"""Parquet: the history of a run as Weights & Biases keeps it, or any table of numbers.

Enters: a file with its own schema, read a few thousand rows at a time. Leaves: blocks of the rows that hold the same
columns; a column of words counts where the words are numbers (W&B writes NaN as one).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import names, rows
from brickprof.logs.reading.model import Floats, Head, Item
from brickprof.logs.reading.numbers import number
from brickprof.logs.reading.rows import Mask
from brickprof.logs.reading.source import Source
from brickprof.run.columns import numbers, present
from brickprof.text import clean

_MAGIC = b"PAR1"
_ROWS = 16_384
_MOST_COLUMNS = 2_000


class Parquet:
    name = "parquet"
    title = "Parquet"

    def sniff(self, head: Head) -> float:
        return 0.9 if head.start.startswith(_MAGIC) else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        import pyarrow as pa
        from pyarrow import parquet

        plain = not source.is_pipe and not source.packed
        try:
            file = parquet.ParquetFile(source.path if plain else pa.BufferReader(source.whole()))
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(
                f"{clean(source.path)} is no whole Parquet file: {clean(error, limit=120)}.",
                "Its last bytes say what is in it; a file that was cut off cannot be read.",
            ) from None
        wanted = [name for field in file.schema_arrow for name in _leaves(field.type, field.name)][:_MOST_COLUMNS]
        line = 1
        for batch in file.iter_batches(_ROWS, columns=wanted, use_threads=False):
            lines = np.arange(line, line + batch.num_rows, dtype=np.int64)
            columns = dict(_columns(pa.Table.from_batches([batch])))
            yield from rows.masked(lines, {name: held for name, held in columns.items() if held[1].any()})
            line += batch.num_rows


def _leaves(kind: Any, name: str) -> Iterator[str]:
    """What may hold numbers in a column, by its path: lists inside of structs cannot always be read."""
    from pyarrow import types

    if types.is_struct(kind):
        for place in range(kind.num_fields):
            yield from _leaves(kind.field(place).type, f"{name}.{kind.field(place).name}")
    elif _may_hold_numbers(kind):
        yield name


def _may_hold_numbers(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
        or types.is_string(kind) or types.is_large_string(kind) or types.is_timestamp(kind)
    )  # fmt: skip


def _columns(table: Any) -> Iterator[tuple[str, tuple[Floats, Mask]]]:
    from pyarrow import types

    for _ in range(8):
        if not any(types.is_struct(field.type) for field in table.schema):
            break
        table = table.flatten()
    for place, field in enumerate(table.schema):
        held = table.column(place).combine_chunks()
        name = field.name.replace(".", "/") if "." in field.name and "/" not in field.name else field.name
        found = _column(held, name)
        if found is not None:
            yield name, found


def _column(held: Any, name: str) -> tuple[Floats, Mask] | None:
    import pyarrow as pa
    from pyarrow import types

    there = present(held)
    if types.is_string(held.type) or types.is_large_string(held.type):
        found = [number(one) if one is not None and len(one) < 64 else None for one in held.to_pylist()]
        mask = np.array([one is not None for one in found], dtype=bool)
        return np.array([np.nan if one is None else one for one in found], dtype=np.float64), mask
    if types.is_boolean(held.type):
        if names.role(name) not in ("skipped", "nonfinite"):
            return None
    elif types.is_timestamp(held.type):
        held = held.cast(pa.timestamp("us", held.type.tz)).cast(pa.int64())
        return numbers(held) / 1e6, there
    elif not (types.is_integer(held.type) or types.is_floating(held.type) or types.is_decimal(held.type)):
        return None
    return numbers(held.cast(pa.float64(), safe=False)), there


READER = Parquet()
