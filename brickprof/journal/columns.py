"""Python values as Arrow columns, straight from their buffers.

Enters: the values of one column. Leaves: an Arrow array. ``pyarrow.array`` would do, but it imports pandas
the first time it is handed a list: half a second inside somebody's training, and an error in a process that
is about to exit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

_CODES = {"int8": "b", "int32": "i", "int64": "q", "double": "d", "uint16": "H"}
_NUMPY = {"int8": "int8", "int32": "int32", "int64": "int64", "double": "float64"}


def numpy_type(kind: Any) -> str | None:
    """What NumPy calls the type of a column; None of what is no number. To ask Arrow is to have it load pandas, before
    version 26."""
    return _NUMPY.get(str(kind))


def column(values: Sequence[Any], field: Any) -> Any:
    """``values`` as the column ``field``; TypeError, ValueError or OverflowError when one does not fit."""
    import pyarrow as pa

    missing = values.count(None)
    if missing and not field.nullable:
        raise TypeError(f"{field.name} must have a value")
    validity = pa.py_buffer(_bits(values)) if missing else None
    if pa.types.is_string(field.type):
        texts = [(value or "").encode("utf-8") for value in values]
        offsets = array("i", accumulate(map(len, texts), initial=0))
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(field.type, len(values), buffers, missing)
    if pa.types.is_fixed_size_list(field.type):
        inner = _numbers(_flat(values, field.type.list_size), field.type.value_type)
        return pa.Array.from_buffers(field.type, len(values), [validity], missing, children=[inner])
    present = [0 if value is None else value for value in values] if missing else values
    return _numbers(present, field.type, validity, missing)


def _numbers(values: Sequence[Any], kind: Any, validity: Any = None, missing: int = 0) -> Any:
    import pyarrow as pa

    data = pa.py_buffer(array(_CODES[str(kind)], values))
    return pa.Array.from_buffers(kind, len(values), [validity, data], missing)


def _flat(values: Sequence[Any], width: int) -> list[int]:
    blank = (0,) * width
    lists = [blank if value is None else value for value in values]
    if any(len(value) != width for value in lists):
        raise ValueError(f"a list must have {width} values")
    return list(chain.from_iterable(lists))


def _bits(values: Sequence[Any]) -> bytes:
    """One bit for each value, the first in the lowest; set where there is one."""
    number = int("".join("0" if value is None else "1" for value in reversed(values)), 2)
    return number.to_bytes((len(values) + 7) // 8, "little")
