"""All samples of one look at once: a row for each tensor, as arrays and not as rows.

Enters: what is the same for all of them, whose they are, and a table of numbers. Leaves: columns of Arrow. A model has
hundreds of tensors, and to make a row of Python values for each and columns out of these takes a millisecond, in which
no other thread of the training gets on; this takes a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

_TABLE = ("nan", "inf", "absmax", "l2", "mean", "zero_fraction", "numel")


@dataclass(frozen=True, slots=True)
class Sheet:
    time_ns: int
    step: int
    micro: int
    role: int
    scale: float | None
    bricks: Any
    """The numbers of the bricks, and of the tensors: arrays of int32."""
    tensors: Any
    table: Any
    """Of float64, a row a tensor: nan, inf, absmax, l2, mean, zero_fraction, numel."""

    def __len__(self) -> int:
        return len(self.tensors)

    def parts(self, most: int) -> Iterator[Sheet]:
        """The same in parts of up to ``most`` rows."""
        if len(self) <= most:
            yield self
            return
        for at in range(0, len(self), most):
            rows = slice(at, at + most)
            yield replace(self, bricks=self.bricks[rows], tensors=self.tensors[rows], table=self.table[rows])

    def columns(self, fields: Any, nothing: Callable[[Any], Any]) -> list[Any]:
        """As the columns ``fields`` of a table; of those that it knows nothing about the first of ``nothing``."""
        import numpy as np
        import pyarrow as pa

        rows, build, held = len(self), pa.Array.from_buffers, pa.py_buffer
        same = {"time_ns": self.time_ns, "step": self.step, "micro": self.micro, "role": self.role, "scale": self.scale}
        own = {"brick": self.bricks, "tensor": self.tensors, **dict(zip(_TABLE, self.table.T, strict=True))}
        found = []
        for name, kind, dtype in _kinds(fields):
            if name in own:
                found.append(build(kind, rows, [None, held(np.ascontiguousarray(own[name], dtype))]))
            elif same.get(name) is None:
                found.append(nothing(kind).slice(0, rows))
            else:
                found.append(build(kind, rows, [None, held(np.full(rows, same[name], dtype))]))
        return found


@cache
def _kinds(fields: Any) -> list[tuple[str, Any, Any]]:
    """Name, type and NumPy's type of each column; none of a list, into which nothing is written."""
    import pyarrow as pa

    return [(f.name, f.type, f.type.to_pandas_dtype() if pa.types.is_primitive(f.type) else None) for f in fields]
