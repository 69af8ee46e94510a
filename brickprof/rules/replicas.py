"""Ranks that train one model together: who they are, and where their bits can be compared.

Enters: the story of a run with several ranks. Leaves: ``Replicas`` when each rank holds a whole copy of the same
model, or the reason why nothing can be compared (one rank, shards of a model, models that differ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brickprof.rules.names import whole
from brickprof.rules.story import Grid, Story

Bools = npt.NDArray[np.bool_]
_SHARDED = ("FSDP", "FullySharded", "DTensor", "DeepSpeed", "Zero", "Pipeline")
_EQUAL = 1e-5
"""Norms of equal tensors are equal to the bit; this leaves room for another order of summation."""
_SIZEABLE = 1e-3


class Look(NamedTuple):
    """One step in which several ranks looked at the same tensors."""

    step: int
    tensors: tuple[str, ...]
    differ: Bools
    """For each tensor, whether some rank's differs from the first one's."""
    values: npt.NDArray[np.float64]
    """Rank x tensor."""


@dataclass(frozen=True)
class Replicas:
    story: Story
    ranks: tuple[int, ...]
    wrapped: bool
    """Whether a wrapper (DistributedDataParallel) promises equal gradients."""
    reduces: bool
    """Whether collectives that reduce were seen."""

    @cached_property
    def weights(self) -> list[Look]:
        return list(_looks([self.story.grid("weight", rank) for rank in self.ranks], bits=True))

    @cached_property
    def gradients(self) -> list[Look]:
        """Gradients as the optimizers saw them."""
        return list(_looks([self.story.grid("grad", rank) for rank in self.ranks], bits=False))

    @cached_property
    def locals(self) -> list[Look]:
        """Gradients as each rank made them."""
        return list(_looks([self.story.grid("grad_local", rank) for rank in self.ranks], bits=False))

    @property
    def together(self) -> bool:
        """Whether the ranks are meant to stay equal: somebody reduces, or they began as equals."""
        began_equal = bool(self.weights) and not self.weights[0].differ.any()
        return self.wrapped or self.reduces or began_equal or self._agree

    @property
    def _agree(self) -> bool:
        """Whether gradients were equal while they were of some size: near zero, rounding alone makes them equal."""
        if not self.gradients:
            return False
        largest = np.nanmax([np.abs(look.values).max(axis=0) for look in self.gradients], axis=0)
        return any(
            not look.differ.any() and bool((np.abs(look.values) > _SIZEABLE * largest).all(axis=0).any())
            for look in self.gradients
        )

    @property
    def meet_again(self) -> bool:
        """Whether ranks that had parted were equal later: local steps with an average now and then."""
        parted = [bool(look.differ.any()) for look in self.weights]
        return True in parted and not all(parted[parted.index(True) :])


def replicas(story: Story) -> Replicas | str:
    """The replicas of a run, or why there are none."""
    ranks = [rank for rank in story.ranks if _world(story, rank) > 1]
    if len(ranks) < 2:
        return "one rank trained"
    wrappers = {rank: _wrappers(story, rank) for rank in ranks}
    if any(mark in wrapper for found in wrappers.values() for wrapper in found for mark in _SHARDED):
        return "each rank holds a shard of the model, not a copy of it"
    if len({_shapes(story, rank) for rank in ranks}) > 1:
        return "the ranks hold models that differ"
    wrapped = all(any("DistributedDataParallel" in wrapper for wrapper in found) for found in wrappers.values())
    reduces = any(
        str(event.fields.get("op", "")).lower().replace("_", "").startswith(("allreduce", "reducescatter"))
        for rank in ranks
        for event in story.events("collective", rank)
    )
    return Replicas(story, tuple(ranks), wrapped, reduces)


def _world(story: Story, rank: int) -> int:
    return max((whole(event.fields.get("world_size"), 1) for event in story.events("run", rank)), default=1)


def _wrappers(story: Story, rank: int) -> set[str]:
    return {str(event.fields.get("wrapper") or "") for event in story.events("model", rank)}


def _shapes(story: Story, rank: int) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        (str(event.fields.get("model")), str(event.fields.get("name")), str(event.fields.get("shape")))
        for event in story.events("tensor", rank)
        if event.fields.get("model")
    )


def _looks(grids: list[Grid], *, bits: bool) -> Iterator[Look]:
    """The steps that at least two ranks looked at."""
    if len(grids) < 2 or any(not len(grid) for grid in grids):
        return
    common = sorted(set.intersection(*(set(grid.tensors) for grid in grids)), key=grids[0].tensors.index)
    if not common:
        return
    places = [[grid.tensors.index(name) for name in common] for grid in grids]
    rows = [dict(zip(grid.steps.tolist(), range(len(grid)), strict=True)) for grid in grids]
    for step in sorted(set.intersection(*(set(row) for row in rows))):
        chosen = [
            (grid.checksum if bits else grid.unscaled_l2)[row[step]][place]
            for grid, row, place in zip(grids, rows, places, strict=True)
        ]
        values = np.stack(chosen)
        if bits:
            known = (values != -1).all(axis=0)
            differ = known & (values != values[0]).any(axis=0)
        else:
            known = np.isfinite(values).all(axis=0)
            largest = np.where(known, np.abs(values).max(axis=0), 0.0)
            differ = known & (np.ptp(np.where(known, values, 0.0), axis=0) > _EQUAL * largest)
        if known.any():
            yield Look(step, tuple(common), differ, values.astype(np.float64))
