"""Where the time of a step goes, rank by rank, from the times that events were written.

Enters: batch, loss and optimizer events. Leaves: the share of the time that was spent waiting for data, and for each
step what a rank did by itself (before its backward) and what it did with the others (from the backward to the update).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brickprof.records import Event
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

Floats = npt.NDArray[np.float64]
_PART = 0.25
"""Of the time that goes by with the batches of the busiest loader: whose batches take less of it are not judged."""


class Waits(NamedTuple):
    """Batches that followed each other: seconds waited for each, and seconds from one to the next."""

    events: tuple[Event, ...]
    waited: Floats
    lasted: Floats
    drawn: int
    """How many the loader has given in all."""

    @property
    def shares(self) -> Floats:
        return self.waited / self.lasted

    @property
    def spent(self) -> float:
        """Seconds of the run that went by with its batches."""
        return self.drawn * float(np.median(self.lasted)) if len(self.lasted) else 0.0


def waits(story: Story, rank: int) -> list[Waits]:
    """One for each loader that was drawn from for a good part of the run: that of an evaluation now and then is not
    what makes a training slow."""
    by_loader: dict[int, list[Event]] = {}
    for event in story.events("batch", rank):
        if number(event.fields.get("wait_ns")) is not None:
            by_loader.setdefault(whole(event.fields.get("loader")), []).append(event)
    found = [_waits(events) for events in by_loader.values() if len(events) > 1]
    longest = max((each.spent for each in found), default=0.0)
    return [each for each in found if each.spent >= _PART * longest]


def _waits(events: list[Event]) -> Waits:
    rows = []
    for before, event in pairwise(events):
        counted = whole(event.fields.get("count")) == whole(before.fields.get("count")) + 1
        follows = counted and event.step - before.step <= 1
        starts = event.fields.get("index") == 0  # workers are started then
        lasted, waited = (event.time_ns - before.time_ns) / 1e9, float(event.fields["wait_ns"]) / 1e9
        # Batches that were fetched together were written together: their times say nothing.
        if follows and not starts and 0 < waited <= 1.05 * lasted:
            rows.append((event, waited, lasted))
    waited_for, whole_times = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    drawn = max(whole(event.fields.get("count")) for event in events)
    return Waits(tuple(row[0] for row in rows), waited_for, whole_times, drawn)


class Pace(NamedTuple):
    """Seconds of one step on one rank."""

    alone: float
    """From the last update to the beginning of the backward."""
    together: float
    """From there to the update: the backward, and the wait for other ranks."""
    evidence: str


def paces(story: Story, rank: int) -> dict[int, Pace]:
    """The steps of a rank whose events follow each other closely enough to be timed."""
    losses: dict[int, tuple[Event, Event]] = {}
    for event in story.events("loss", rank):
        first, _ = losses.get(event.step, (event, event))
        losses[event.step] = first, event
    updates = {event.step: event for event in story.events("optimizer", rank)}
    found = {}
    for step, (first, last) in losses.items():
        before, after = updates.get(step - 1), updates.get(step)
        if before is not None and after is not None and before.time_ns < first.time_ns <= last.time_ns < after.time_ns:
            found[step] = Pace(
                (first.time_ns - before.time_ns) / 1e9, (after.time_ns - last.time_ns) / 1e9, first.id
            )  # fmt: skip
    return found
