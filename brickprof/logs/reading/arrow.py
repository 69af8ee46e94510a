"""Between Arrow and NumPy, without pandas.

Enters: columns of Arrow, places in NumPy. Leaves: the same the other way round. pyarrow's own ways, ``pa.array`` and
``to_numpy``, load pandas to find out that they have nothing to do with it, which takes longer than to read most logs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def places(numbers: NDArray[Any]) -> Any:
    """Whole numbers, for ``take``."""
    whole = np.ascontiguousarray(numbers, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def there(held: Any) -> NDArray[np.bool_]:
    """Where ``held`` has a value."""
    bits = held.buffers()[0] if held.null_count else None
    if bits is None:
        return np.full(len(held), not held.null_count)  # a column of type null has no bits at all
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[held.offset :][: len(held)].astype(bool)


def values(held: Any) -> NDArray[Any]:
    """The numbers of an array: as they are, or with nan in the place of each that is missing."""
    kind = held.type
    if not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        other: NDArray[Any] = held.to_numpy(zero_copy_only=False)
        return other
    plain = np.frombuffer(held.buffers()[1] or b"", kind.to_pandas_dtype())
    found = plain[held.offset : held.offset + len(held)]
    return np.where(there(held), found, np.nan) if held.null_count else found


def spans(data: bytes, starts: NDArray[Any], ends: NDArray[Any]) -> Any:
    """What stands from these places of ``data`` to those, as bytes."""
    cells = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    bounds = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum([len(cell) for cell in cells], out=bounds[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(cells), [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(cells))]
    )
