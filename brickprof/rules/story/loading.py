"""A whole run into a story, column by column.

Enters: a ``Run``. Leaves: its events, and its samples as arrays that were never records: three million of them take
seconds as records and a fraction of one as columns.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.records import ROLES
from brickprof.rules.story.grids import STATISTICS, Source
from brickprof.run.columns import numbers, whole

if TYPE_CHECKING:
    from brickprof.rules.story import Story
    from brickprof.run import Run
    from brickprof.run.parts import Part

_MOST_SPANS = 200_000
_MOST_PAIRS = 10_000_000
"""Up to here counting is faster than sorting."""


def load(story: Story, run: Run) -> None:
    story.run = run
    for part in run.parts:
        for event in sorted(part.events, key=lambda event: event.moment):
            story.feed(event)
        _samples(story, part, qualified=run.qualified)
        for span in part.as_spans(part.spans[0].slice(0, _MOST_SPANS)):
            story.feed(span)


def _samples(story: Story, part: Part, *, qualified: bool) -> None:
    table = part.samples[0]
    if not table.num_rows:
        return
    roles = _whole(table, "role", -1)
    measured = [name for name in STATISTICS if name != "checksum" and table[name].null_count < table.num_rows]
    known = table["checksum"].null_count < table.num_rows
    checksums = _whole(table, "checksum", -1) if known else None
    present = np.unique(roles)
    for role in present:
        if not 0 <= role < len(ROLES):
            continue
        mask: Any = slice(None) if len(present) == 1 else roles == role
        kept = story.columns(ROLES[role], part.rank)
        places = _places(part, kept, _whole(table, "tensor")[mask], _whole(table, "brick")[mask], qualified=qualified)
        columns: dict[str, Source] = {name: partial(_numbers, table, name, mask) for name in measured}
        kept.extend(_whole(table, "step")[mask], places, columns, None if checksums is None else checksums[mask])


def _places(part: Part, kept: Any, tensors: Any, bricks: Any, *, qualified: bool) -> Any:
    """The column of each sample: by its tensor's name, or its brick's where it has no tensor of its own."""
    base = int(bricks.max(initial=0)) + 1
    keys = tensors * base + bricks
    countable = keys.min(initial=0) >= 0 and keys.max(initial=0) < _MOST_PAIRS
    pairs = np.flatnonzero(np.bincount(keys)) if countable else np.unique(keys)
    names = part.names
    columns = []
    for tensor_number, brick_number in (divmod(pair, base) for pair in pairs.tolist()):
        brick = names.brick(brick_number)
        name = names.tensor(tensor_number).shown(qualified=qualified) or brick.name(qualified=qualified)
        columns.append(kept.place(name, brick))
    if not countable:
        return np.asarray(columns, np.int64)[np.searchsorted(pairs, keys)]
    known = np.zeros(int(keys.max(initial=0)) + 1, np.int64)
    known[pairs] = columns
    return known[keys]


def _whole(table: Any, name: str, missing: int = 0) -> Any:
    return whole(table[name], missing)


def _numbers(table: Any, name: str, mask: Any) -> Any:
    return numbers(table[name])[mask]
