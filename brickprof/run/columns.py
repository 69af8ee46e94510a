"""Columns of Arrow tables as numpy arrays, straight from their buffers.

Enters: a column of numbers. Leaves: its values. ``to_numpy`` would do, and ``pa.array`` the other way round, but they
import pandas first: a third of a second that the end of a run, a report, and most logs can do without.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_KINDS = {
    "int8": np.int8, "int32": np.int32, "int64": np.int64, "uint16": np.uint16, "uint64": np.uint64,
    "float": np.float32, "double": np.float64,
}  # fmt: skip
_FEW_STRETCHES = 2000


def whole(column: Any, missing: int = 0) -> Any:
    """A column of whole numbers; ``missing`` where there is none."""
    return _filled(column, missing).astype(np.int64, copy=False)


def numbers(column: Any) -> Any:
    """A column of any numbers as floats; NaN where there is none."""
    if not column.null_count:
        return values(column).astype(np.float64, copy=False)
    found = values(column).astype(np.float64)
    found[~present(column)] = np.nan
    return found


def values(column: Any) -> Any:
    """What stands in the column's memory: anything where a value is missing."""
    kind = _KINDS[str(column.type)]
    parts = [_data(chunk, kind) for chunk in _chunks(column)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, kind), *parts])


def present(column: Any) -> Any:
    """Which values of a column there are."""
    return np.concatenate([np.empty(0, bool), *map(_valid, _chunks(column))])


def distinct(values: Any) -> tuple[Any, Any]:
    """The distinct values, ascending, and the place of each among them: ``np.unique``, quick where they ascend."""
    if len(values) < 2 or np.any(values[1:] < values[:-1]):
        found: tuple[Any, Any] = np.unique(values, return_inverse=True)
        return found
    new = np.empty(len(values), bool)
    new[0] = True
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new], np.cumsum(new) - 1


def places(numbers: Any) -> Any:
    """Places in a column, for ``take``."""
    import pyarrow as pa

    given = np.ascontiguousarray(numbers, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(given), [None, pa.py_buffer(given)])


def rows(table: Any, mask: Any) -> Any:
    """The rows of ``table`` that ``mask`` has, in their order."""
    import pyarrow as pa

    given = np.asarray(mask, bool)
    edges = np.flatnonzero(np.diff(given, prepend=False, append=False)).tolist()
    if len(edges) <= 2 * _FEW_STRETCHES:  # ``filter`` would import all of pyarrow.compute
        parts = [table.slice(start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=True)]
        return pa.concat_tables([table.slice(0, 0), *parts])
    bits = np.packbits(given, bitorder="little").tobytes()
    return table.filter(pa.Array.from_buffers(pa.bool_(), len(given), [None, pa.py_buffer(bits)]))


def _filled(column: Any, missing: int) -> Any:
    found = values(column)
    if column.null_count:
        found = found.copy()
        found[~present(column)] = missing
    return found


def _chunks(column: Any) -> list[Any]:
    return column.chunks if hasattr(column, "chunks") else [column]


def _data(chunk: Any, kind: Any) -> Any:
    data = chunk.buffers()[1]
    if data is None:
        return np.zeros(len(chunk), kind)
    return np.frombuffer(data, kind, len(chunk), chunk.offset * np.dtype(kind).itemsize)


def _valid(chunk: Any) -> Any:
    bits = chunk.buffers()[0]
    if bits is None or not chunk.null_count:
        return np.full(len(chunk), chunk.null_count == 0)
    first = chunk.offset // 8
    last = (chunk.offset + len(chunk) + 7) // 8
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8, last - first, first), bitorder="little")
    return unpacked[chunk.offset - 8 * first :][: len(chunk)].astype(bool)
