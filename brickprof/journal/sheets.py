"""All samples of one look at once: a row for each tensor, as arrays and not as rows.

Enters: what is the same for all of them, whose they are, and a table of numbers. Leaves: columns of Arrow. A model has
hundreds of tensors, and to make a row of Python values for each and columns out of these takes a millisecond, in which
no other thread of the training gets on; this takes a tenth of it, and less where several looks are written together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from brickprof.journal.columns import numpy_type

_SAME = frozenset(("time_ns", "step", "micro", "role", "scale"))
"""What all samples of a look have in common."""
_UNKNOWN = frozenset(("absmax", "mean", "zero_fraction"))
TABLE = ("nan", "inf", "absmax", "l2", "mean", "zero_fraction", "", "numel")


@dataclass(slots=True)
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
    """Of float64, a row a tensor, as the kernel of ``brickprof.kernels.statistics`` makes it: nan, inf, absmax, l2,
    mean, zero_fraction, a checksum that is not kept, numel. Sizes are of what is finite."""
    norms_only: bool = False
    """Whether nothing is known but nan, inf, l2 and numel."""

    def alike(self, other: Sheet) -> bool:
        """Whether both know the same columns."""
        return (self.scale is None) is (other.scale is None) and self.norms_only is other.norms_only

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


def together(sheets: Iterable[Sheet], most: int) -> Iterator[list[Sheet]]:
    """Sheets that may stand in one frame of up to ``most`` rows: those that are alike, in their order."""
    part: list[Sheet] = []
    by_kind = sorted(sheets, key=lambda sheet: (sheet.norms_only, sheet.scale is not None))
    for sheet in (cut for whole in by_kind for cut in whole.parts(most)):
        if part and (sum(map(len, part)) + len(sheet) > most or not sheet.alike(part[0])):
            yield part
            part = []
        part.append(sheet)
    if part:
        yield part


def columns(sheets: Sequence[Sheet], fields: Any, nothing: Callable[[Any], Any]) -> list[Any]:
    """As the columns ``fields`` of a table; of those that they know nothing about the first of ``nothing``."""
    import numpy as np
    import pyarrow as pa

    lengths = list(map(len, sheets))
    rows, build, held = sum(lengths), pa.Array.from_buffers, pa.py_buffer
    table = np.concatenate([sheet.table for sheet in sheets])
    broken = table[:, :2].any(axis=1)
    if broken.any():
        table[broken, 2] = np.where(table[broken, 0] > 0, np.nan, np.inf)
        table[broken, 3] = np.nan
    own = {
        "brick": np.concatenate([sheet.bricks for sheet in sheets]),
        "tensor": np.concatenate([sheet.tensors for sheet in sheets]),
        **{name: table[:, place] for place, name in enumerate(TABLE) if name},
    }
    if sheets[0].norms_only:
        own = {name: values for name, values in own.items() if name not in _UNKNOWN}
    found = []
    for name, kind, dtype in _kinds(fields):
        if name in own:
            found.append(build(kind, rows, [None, held(np.ascontiguousarray(own[name], dtype))]))
        elif name not in _SAME or (name == "scale" and sheets[0].scale is None):
            found.append(nothing(kind).slice(0, rows))
        else:
            each = np.array([getattr(sheet, name) for sheet in sheets]).astype(dtype, casting="same_kind")
            found.append(build(kind, rows, [None, held(np.repeat(each, lengths))]))
    return found


@cache
def _kinds(fields: Any) -> list[tuple[str, Any, Any]]:
    """Name, type and NumPy's type of each column; none of a list, into which nothing is written."""
    return [(field.name, field.type, numpy_type(field.type)) for field in fields]
