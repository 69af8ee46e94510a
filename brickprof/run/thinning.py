"""Very many samples made few, so that the steps which tell something stay whole.

Enters: the samples of one rank. Leaves: which of them stay. ``thinned``: all of them where they are few; else those of
the first and the last steps, of the steps around anything that is not finite, and of as many others, evenly spread, as
there is room for. ``telling``: of these the ones that say something that no other one says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brickprof.records import ROLES
from brickprof.run.names import Names
from brickprof.run.sampled import Samples

_ENOUGH = 40_000
_HEAD, _TAIL, _AROUND = 32, 64, 8
_GRADS = tuple(ROLES.index(role) for role in ("grad", "grad_local"))
_WEIGHT = ROLES.index("weight")
_WIDEST = 2**62


def thinned(samples: Samples, enough: int = _ENOUGH) -> Any:
    """The rows that stay; None for all."""
    if samples.rows <= enough:
        return None
    looks = samples.looks
    keep = np.zeros(len(looks.steps), bool)
    keep[:_HEAD] = keep[-_TAIL:] = True
    for place in np.unique(looks.of(_broken(samples)))[:64]:
        keep[max(0, place - _AROUND) : place + _AROUND + 1] = True
    room = max(enough - int(looks.counts[keep].sum()), 0)
    stride = max(1, int(np.ceil(len(keep) * (samples.rows / len(keep)) / max(room, 1))))
    keep[::stride] = True
    return looks.spread(keep)


def _broken(samples: Samples) -> Any:
    """The samples that hold something that is not finite."""
    return np.flatnonzero((samples.whole("nan") > 0) | (samples.whole("inf") > 0))


def telling(samples: Samples, names: Names, named: Sequence[int]) -> Any:
    """The rows, ordered by time, without which somebody who follows them would know less.

    That a gradient is finite and not zero, or a weight finite, is said by the first and the last sample of each tensor
    and by the first of each step; those between say it again. Whatever else there is stays. ``named`` are the times at
    which names were given: what a sample means may be another thing afterwards.
    """
    roles, steps, largest = samples.whole("role"), samples.whole("step"), samples.numbers("absmax")
    flows = np.isin(roles, _GRADS) & np.isfinite(largest) & (largest != 0.0)
    finite = (samples.whole("nan", -1) == 0) & (samples.whole("inf") == 0)
    plain = np.flatnonzero((flows | (roles == _WEIGHT)) & finite)
    keep = np.ones(samples.rows, bool)
    keep[plain] = False
    roles, steps = roles[plain], steps[plain]
    since = np.searchsorted(np.asarray(named, np.int64), samples.whole("time_ns")[plain], side="right")
    tensors, bricks = samples.whole("tensor")[plain], samples.whole("brick")[plain]
    each = _numbered(roles, since, tensors, bricks)
    keep[plain[_firsts(each)]] = True
    keep[plain[len(plain) - 1 - _firsts(each[::-1])]] = True
    for group in (roles, _numbered(roles, since, _models(names, tensors, bricks))):
        keep[plain[_changes(group, steps)]] = True
    return keep


def _models(names: Names, tensors: Any, bricks: Any) -> Any:
    """A number for the model that each sample belongs to."""
    _, firsts, each = np.unique(_numbered(tensors, bricks), return_index=True, return_inverse=True)
    known: dict[tuple[str, str], int] = {}
    found = [
        known.setdefault((names.tensor(tensor).model, names.brick(brick).model), len(known))
        for tensor, brick in zip(tensors[firsts].tolist(), bricks[firsts].tolist(), strict=True)
    ]
    return np.asarray(found, np.int64)[each]


def _firsts(groups: Any) -> Any:
    """The place of the first row of each group."""
    return np.unique(groups, return_index=True)[1]


def _changes(groups: Any, steps: Any) -> Any:
    """The rows whose step is another one than that of the row before them in their group."""
    order = np.argsort(groups, kind="stable")
    group, step = groups[order], steps[order]
    new = np.ones(len(order), bool)
    new[1:] = (group[1:] != group[:-1]) | (step[1:] != step[:-1])
    return order[new]


def _numbered(*columns: Any) -> Any:
    """A number for each row: the same where all columns are."""
    found, wide = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low = int(column.min(initial=0))
        more = int(column.max(initial=0)) - low + 1
        if wide * more >= _WIDEST:  # a damaged file may hold any number
            found, column = (np.unique(each, return_inverse=True)[1] for each in (found, column))
            low, wide, more = 0, len(found), len(found)
        found, wide = found * more + (column - low), wide * more
    return found
