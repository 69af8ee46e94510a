"""Several logs of one run as one: ranks side by side, attempts one after another.

Enters: logs, in the order they were named. Leaves: ``Piece``s: one log each, with the rank it speaks for and its place
in the order of time, so that what was done twice counts as it was done last.

Two files of one format that tell the same steps under the same names are two ranks; so are files whose names say so.
Files that go on where others end, or begin again before that, are attempts. Two formats that tell the same steps are
two accounts of one training: the fuller one counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from brickprof.logs.reading.gather import Log, Series

_RANK = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_MOSTLY = 0.5
_NEARLY = 0.8


@dataclass(frozen=True, slots=True)
class Piece:
    log: Log
    rank: int
    order: int
    """Later pieces of a rank were written later."""
    again: bool = False
    """Tells what another piece tells more fully: its losses are left out."""
    until: int | None = None
    """The step from which on a later piece tells it anew."""
    after: Log | None = None
    """The log of the attempt before this one."""


def pieces(logs: Sequence[Log]) -> list[Piece]:
    if len(logs) < 2:
        return [Piece(log, 0, place) for place, log in enumerate(logs)]
    return _in_turn(_placed(logs))


def _in_turn(found: list[Piece]) -> list[Piece]:
    """Of the pieces of one rank, who follows whom."""
    made = []
    for piece in found:
        others = [other for other in found if other.rank == piece.rank and not (other.again or piece.again)]
        later = [_first(other.log) for other in others if other.order > piece.order]
        earlier = [other.log for other in others if other.order < piece.order]
        made.append(replace(piece, until=min(later, default=None), after=earlier[-1] if earlier else None))
    return made


def _placed(logs: Sequence[Log]) -> list[Piece]:
    named = [_rank_of(log.path) for log in logs]
    if len({rank for rank in named if rank is not None}) > 1:
        ordered = sorted(zip(logs, named, strict=True), key=lambda pair: (pair[1] or 0, _first(pair[0])))
        return [Piece(log, rank or 0, place) for place, (log, rank) in enumerate(ordered)]
    return _unnamed(sorted(logs, key=lambda log: (_first(log), log.last_step)))


def _unnamed(logs: list[Log]) -> list[Piece]:
    found: list[Piece] = []
    for place, log in enumerate(logs):
        beside = [piece for piece in found if _same_steps(piece.log, log)]
        if not beside:
            found.append(Piece(log, 0, place))
        elif any(piece.log.format == log.format for piece in beside):
            found.append(Piece(log, 1 + max(piece.rank for piece in beside), place))
        else:
            fuller = all(_size(log) > _size(piece.log) for piece in beside)
            found = [replace(piece, again=True) if fuller and piece in beside else piece for piece in found]
            found.append(Piece(log, 0, place, again=not fuller))
    return found


def _rank_of(path: str) -> int | None:
    told = [_RANK.search(part) for part in PurePath(path).parts[-2:]]
    known = [int(match[1]) for match in told if match]
    return known[-1] if known else None


def _first(log: Log) -> int:
    return min((int(series.steps[0]) for series in log.series.values() if len(series)), default=0)


def _size(log: Log) -> int:
    told = _told(log)
    return told.count if told is not None else 0


def _same_steps(one: Log, other: Log) -> bool:
    """Whether both tell of the same steps: of two formats the one may tell fewer of them."""
    first, second = _told(one), _told(other)
    if first is None or second is None or one.steps_by == "row" or other.steps_by == "row":
        return False
    shared = len(np.intersect1d(first.steps, second.steps))
    if one.format != other.format:
        return shared > _MOSTLY * min(len(first), len(second))
    return shared > _NEARLY * max(len(first), len(second))  # an attempt that begins anew goes further, or less far


def _told(log: Log) -> Series | None:
    return log.loss or max(log.series.values(), key=len, default=None)
