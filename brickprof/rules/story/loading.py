"""A whole run into a story, column by column.

Enters: a ``Run``. Leaves: its events, and its samples as arrays that were never records: three million of them take
seconds as records and a fraction of one as columns.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.records import ROLES
from brickprof.rules.story.grids import STATISTICS, Source

if TYPE_CHECKING:
    from brickprof.rules.story import Story
    from brickprof.run import Run
    from brickprof.run.parts import Part
    from brickprof.run.sampled import Samples

Rest = tuple[bool, list[tuple["Part", tuple[int, int]]]]
"""Whether names carry their model, and each part with the steps of the last deep look when it was taken."""
_MOST_SPANS = 200_000
_MOST_PAIRS = 10_000_000
"""Up to here counting is faster than sorting."""


def load_events(story: Story, run: Run) -> Rest:
    """The events of every rank; what else there is comes back, for ``load_rest``."""
    story._run, story.partial = run, True
    rest = []
    for part in run.parts:
        story.take(part.rank, sorted(part.events, key=attrgetter("time_ns", "seq")))
        rest.append((part, story._deep))
    return run.qualified, rest


def load_rest(story: Story, rest: Rest) -> None:
    """Samples and spans; those of one rank know of no deeper look that a later one took."""
    qualified, parts = rest
    last, story.partial = story._deep, False
    for part, deep in parts:
        story._deep = deep
        _samples(story, part, qualified=qualified)
        for span in part.as_spans(part.spans[0].slice(0, _MOST_SPANS)):
            story.feed(span)
    story._deep = last


def _samples(story: Story, part: Part, *, qualified: bool) -> None:
    samples = part.sampled
    if not samples.rows:
        return
    roles = samples.whole("role", -1) if not samples.gapless("role") else samples.stored("role")
    measured = [name for name in STATISTICS if name != "checksum" and samples.known(name)]
    checksums = samples.whole("checksum", -1) if samples.known("checksum") else None
    present = np.unique(roles) if roles.min() < roles.max() else roles[:1]
    for role in present.tolist():
        if not 0 <= role < len(ROLES):
            continue
        mask: Any = slice(None) if len(present) == 1 else roles == role
        kept = story.columns(ROLES[role], part.rank)
        places = _places(part, kept, samples.stored("tensor")[mask], samples.stored("brick")[mask], qualified=qualified)
        columns: dict[str, Source] = {name: Statistic(samples, name, mask) for name in measured}
        kept.extend(samples.whole("step")[mask], places, columns, None if checksums is None else checksums[mask])


class Statistic:
    """The values of one statistic in the samples of one role, for when they are asked for."""

    def __init__(self, samples: Samples, name: str, mask: Any) -> None:
        self._samples, self._name, self._mask = samples, name, mask
        self.gapless = samples.gapless(name)

    def __call__(self) -> Any:
        return self._samples.numbers(self._name)[self._mask]

    def part(self, first: int, last: int) -> Any:
        """Those from ``first`` to before ``last``."""
        places = np.arange(first, last) if isinstance(self._mask, slice) else np.flatnonzero(self._mask)[first:last]
        return self._samples.some(self._name, places)


def _places(part: Part, kept: Any, tensors: Any, bricks: Any, *, qualified: bool) -> Any:
    """The column of each sample: by its tensor's name, or its brick's where it has no tensor of its own."""
    period = _period(tensors, bricks)
    if period < len(tensors):
        row = _places(part, kept, tensors[:period], bricks[:period], qualified=qualified)
        return np.resize(row, len(tensors))
    base = int(bricks.max(initial=0)) + 1
    highest = int(tensors.max(initial=0)) * base + base
    countable = tensors.min(initial=0) >= 0 and bricks.min(initial=0) >= 0 and highest < _MOST_PAIRS
    if not countable:
        keys = tensors.astype(np.int64) * base + bricks
        pairs = np.unique(keys)
        return np.asarray(_columns(part, kept, pairs, base, qualified=qualified), np.int64)[
            np.searchsorted(pairs, keys)
        ]
    keys = tensors * tensors.dtype.type(base)  # below the bound no type that holds them overflows
    keys += bricks
    seen = np.zeros(highest, bool)
    seen[keys] = True
    pairs = np.flatnonzero(seen)
    known = np.zeros(highest, np.int32)
    known[pairs] = _columns(part, kept, pairs, base, qualified=qualified)
    return known[keys]


def _period(tensors: Any, bricks: Any) -> int:
    """After how many samples they begin again with the same tensors in the same order; their number where they do not.

    A training looks at its tensors in one order, step after step.
    """
    again = np.flatnonzero((tensors[1:] == tensors[:1]) & (bricks[1:] == bricks[:1]))
    period = int(again[0]) + 1 if len(again) else len(tensors)
    same = all(np.array_equal(column[period:], column[: len(column) - period]) for column in (tensors, bricks))
    return period if same else len(tensors)


def _columns(part: Part, kept: Any, pairs: Any, base: int, *, qualified: bool) -> list[int]:
    names = part.names
    found = []
    for tensor_number, brick_number in (divmod(pair, base) for pair in pairs.tolist()):
        brick = names.brick(brick_number)
        name = names.tensor(tensor_number).shown(qualified=qualified) or brick.name(qualified=qualified)
        found.append(kept.place(name, brick))
    return found
