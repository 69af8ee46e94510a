"""Very many samples made few, so that the steps which tell something stay whole.

Enters: the samples of one rank. Leaves: the same table where it is small; else the samples of the first and the last
steps, of the steps around anything that is not finite, and of as many others, evenly spread, as there is room for.
"""

from __future__ import annotations

from typing import Any

_ENOUGH = 40_000
_HEAD, _TAIL, _AROUND = 32, 64, 8


def thin_samples(table: Any, enough: int = _ENOUGH) -> Any:
    if table.num_rows <= enough:
        return table
    import numpy as np

    from brickprof.run.columns import distinct, whole
    from brickprof.run.columns import rows as kept_rows

    steps = whole(table["step"])
    looked, rows = distinct(steps)
    keep = np.zeros(len(looked), bool)
    keep[:_HEAD] = keep[-_TAIL:] = True
    for place in np.unique(rows[_broken(table)])[:64]:
        keep[max(0, place - _AROUND) : place + _AROUND + 1] = True
    room = max(enough - int(np.isin(rows, np.flatnonzero(keep)).sum()), 0)
    stride = max(1, int(np.ceil(len(looked) * (table.num_rows / len(looked)) / max(room, 1))))
    keep[::stride] = True
    return kept_rows(table, keep[rows])


def _broken(table: Any) -> Any:
    """Which samples hold something that is not finite."""
    from brickprof.run.columns import whole

    counts = [whole(table[name]) > 0 for name in ("nan", "inf")]
    return counts[0] | counts[1]
