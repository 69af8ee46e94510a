"""The tensors of two runs, held against each other as matrices.

Enters: the grids of one role and rank of both runs. Leaves: an ``Outcome``. Ten thousand steps of three hundred tensors
are compared in one go; only the first difference is ever looked at by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from brickprof.diagnosis.compare.outcome import Difference, Outcome
from brickprof.rules.story import Grid, Story

_BACKWARD = ("grad", "grad_local")
LAST_MICRO = 1 << 30


def of_grids(what: str, role: str, stage: int, rank: int, stories: tuple[Story, Story], tolerance: float) -> Outcome:
    """Bits of weights where there is no tolerance, norms of everything else."""
    mine, theirs = (story.grid(role, rank) for story in stories)
    names = [name for name in mine.tensors if name in set(theirs.tensors)]
    steps = np.intersect1d(mine.steps, theirs.steps)
    if not names or not len(steps):
        return Outcome(what)
    bits = role == "weight" and not tolerance
    a, b = (_chosen(grid, steps, names, bits=bits) for grid in (mine, theirs))
    known = (a != -1) & (b != -1) if bits else ~(np.isnan(a) | np.isnan(b))
    apart = known & _apart(a, b, tolerance, bits=bits)
    found = Outcome(what, int(known.sum()), int(apart.sum()), steps=set(steps[known.any(axis=1)].tolist()))
    if not bits and known.any():
        found.largest = float(np.max(np.where(known, _distances(a, b), 0.0)))
    if apart.any():
        look = int(np.argmax(apart.any(axis=1)))
        order = _causal(stories[0], mine, names, role)
        depth = next(position for position, place in enumerate(order) if apart[look, place])
        place = order[depth]
        step, name = int(steps[look]), names[place]
        micro = LAST_MICRO if stage > 4 else 0
        values = (_plain(a[look, place]), _plain(b[look, place]))
        brick = stories[0].names.show(mine.bricks[mine.tensors.index(name)])
        identity = f"{role}:{step}:{name}@{rank}"
        found.first = (
            (step, micro, stage, depth, rank),
            Difference(what, step, rank, brick, name, *values, (identity, identity)),
        )
    return found


def _chosen(grid: Grid, steps: npt.NDArray[np.int64], names: list[str], *, bits: bool) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = grid.checksum
    if not bits:
        damaged = (np.nan_to_num(grid.nan) > 0) | (np.nan_to_num(grid.inf) > 0)
        values = np.where(damaged, np.inf, np.where(np.isnan(grid.l2), grid.absmax, grid.l2))
    places = [grid.tensors.index(name) for name in names]
    chosen: npt.NDArray[Any] = values[np.searchsorted(grid.steps, steps)][:, places]
    return chosen


def _apart(a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: float, *, bits: bool) -> npt.NDArray[np.bool_]:
    different: npt.NDArray[np.bool_] = a != b if bits else _distances(a, b) > tolerance
    return different


def _distances(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        found = np.abs(a - b) / np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))
    return np.where(a == b, 0.0, np.where(np.isnan(found), np.inf, found))


def _causal(story: Story, grid: Grid, names: list[str], role: str) -> list[int]:
    """Places in the order in which they act: a forward from the input on, a backward from the loss on."""
    bricks = {name: grid.bricks[grid.tensors.index(name)] for name in names}
    order = sorted(range(len(names)), key=lambda place: (story.depth.of(bricks[names[place]]) or 0, place))
    return order[::-1] if role in _BACKWARD else order


def _plain(value: Any) -> int | float:
    return int(value) if np.issubdtype(type(value), np.integer) else float(value)
