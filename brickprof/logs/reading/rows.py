"""Rows that hold different numbers, as blocks of rows that hold the same.

Enters: rows as mappings, or columns with the places where they hold something. Leaves: blocks, one for each set of
names. Where there are so many sets that blocks would hold a row or two, each number is given a block of its own,
together with the step and the epoch of its rows.

What a row says about itself is heeded: of which process it is (``rank``), and whether it is of an evaluation (``mode``,
``split``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from brickprof.logs.reading import names
from brickprof.logs.reading.model import Block, Floats, Skipped, Whole
from brickprof.text import clean

Mask = NDArray[np.bool_]
MARKERS = frozenset({"mode", "split", "phase", "stage", "subset", "tag"})
"""Keys whose word tells of what a row is."""
_EVALUATIONS = frozenset({"val", "valid", "validation", "eval", "evaluation", "evaluate", "test", "dev", "holdout"})
_GUIDES = frozenset({"step", "epoch", "time", "total_steps", "tokens"})
_RANKS = (("rank",), ("global", "rank"), ("process", "index"))
_STEPS = (("global", "step"), ("trainer", "global", "step"), ("train", "global", "step"), ("step",), ("iteration",))
"""What counts the steps of a run, the surest first."""
_MOST_SETS = 64
_MOST_RANKS = 4096
_MOST_EXAMPLES = 5


def is_guide(name: str) -> bool:
    """Whether this tells when a row was written, not what was measured."""
    return names.role(name) in _GUIDES


def kind_of(marker: str) -> str:
    """What a row is that calls itself so: ``eval``, ``train`` or nothing in particular."""
    said = frozenset(names.words(marker))
    if said & _EVALUATIONS:
        return "eval"
    return "train" if said & {"train", "training"} else ""


def blocks(lines: Sequence[int] | Whole, rows: Sequence[Mapping[str, float]], kind: str = "") -> Iterator[Block]:
    """Rows as blocks; a row without numbers is in none."""
    places: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(tuple(row), []).append(place)
    places.pop((), None)
    if len(places) > _MOST_SETS:
        yield from _each_alone(lines, rows, kind)
        return
    joined: dict[tuple[str, ...], list[int]] = {}
    for key, found in places.items():
        joined.setdefault(tuple(sorted(key)), []).extend(found)
    for key, found in joined.items():
        found.sort()
        columns = {name: np.array([rows[place][name] for place in found], dtype=np.float64) for name in key}
        yield from by_rank(np.array([lines[place] for place in found], dtype=np.int64), columns, kind)


def _each_alone(lines: Sequence[int] | Whole, rows: Sequence[Mapping[str, float]], kind: str) -> Iterator[Block]:
    found: dict[str, tuple[list[int], list[dict[str, float]]]] = {}
    for line, row in zip(lines, rows, strict=True):
        guides = {name: value for name, value in row.items() if is_guide(name) or names.words(name) in _RANKS}
        for name, value in row.items():
            if name not in guides:
                where, which = found.setdefault(name, ([], []))
                where.append(int(line))
                which.append({**guides, name: value})
    for where, which in found.values():
        if len({tuple(row) for row in which}) > _MOST_SETS:
            name = next(reversed(which[0]))
            which = [{name: row[name]} for row in which]
        yield from blocks(where, which, kind)


def masked(lines: Whole, columns: Mapping[str, tuple[Floats, Mask]], kind: str = "") -> Iterator[Block]:
    """Columns of which each holds something only in some rows."""
    if not columns or not len(lines):
        return
    there = np.stack([mask for _, mask in columns.values()])
    if there.all():
        yield from by_rank(lines, {name: values for name, (values, _) in columns.items()}, kind)
        return
    packed = np.ascontiguousarray(np.packbits(there, axis=0).T)
    sets, of = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_inverse=True)
    if len(sets) > _MOST_SETS and len(columns) > 1:
        yield from _each_column(lines, columns, kind)
        return
    for which in range(len(sets)):
        rows = np.flatnonzero(of == which)
        held = {name: values[rows] for name, (values, mask) in columns.items() if mask[rows[0]]}
        yield from by_rank(lines[rows], held, kind)


def _each_column(lines: Whole, columns: Mapping[str, tuple[Floats, Mask]], kind: str) -> Iterator[Block]:
    guides = {name: column for name, column in columns.items() if is_guide(name)}
    whole = {name: column for name, column in guides.items() if column[1].mean() > 0.5}
    for name, (values, mask) in columns.items():
        rows = np.flatnonzero(mask)
        if name in guides or not len(rows):
            continue
        narrow = {guide: (held[rows], there[rows]) for guide, (held, there) in whole.items()}
        if len(narrow) > 3:
            narrow = {guide: column for guide, column in narrow.items() if column[1].all()}
        yield from masked(lines[rows], {**narrow, name: (values[rows], mask[rows])}, kind)


def by_rank(lines: Whole, columns: Mapping[str, Floats], kind: str = "") -> Iterator[Block]:
    """One block, or one for each process where the rows say which wrote them."""
    if not columns:
        return
    columns = _step_first(columns)
    told = next((name for name in columns if names.words(name) in _RANKS), None)
    if told is None or not (np.isfinite(columns[told]).all() and (columns[told] >= 0).all()):
        yield Block(lines, columns, None, kind)
        return
    ranks = np.unique(columns[told])
    if len(ranks) > _MOST_RANKS or (ranks != np.floor(ranks)).any():
        yield Block(lines, columns, None, kind)
        return
    for rank in ranks:
        rows = np.flatnonzero(columns[told] == rank)
        yield Block(lines[rows], {name: held[rows] for name, held in columns.items() if name != told}, int(rank), kind)


def _step_first(columns: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """The column that counts all steps before one that counts those of an epoch."""
    counts = [name for name in columns if names.role(name) == "step"]
    if len(counts) < 2:
        return columns
    best = min(counts, key=lambda name: _STEPS.index(words) if (words := names.words(name)) in _STEPS else len(_STEPS))
    return {best: columns[best], **columns}


def skipped(lines: Sequence[tuple[int, bytes | str]]) -> Iterator[Skipped]:
    """Lines that say nothing, a few of them to be shown."""
    if lines:
        shown = tuple((line, clean(_text(text), limit=200)) for line, text in lines[:_MOST_EXAMPLES])
        yield Skipped(len(lines), shown)


def _text(line: bytes | str) -> str:
    return line if isinstance(line, str) else line[:1000].decode("utf-8", "replace")
