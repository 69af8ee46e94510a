"""Schedules as they were built and as they were used.

Enters: a story. Leaves: a ``Schedule`` for each one that was seen, with its own settings, how often it was stepped, and
the learning rates of the optimizer it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brickprof.contracts import spellings
from brickprof.records import Event
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story, Track

_HORIZONS = {
    "CosineAnnealingLR": "T_max", "OneCycleLR": "total_steps", "LinearLR": "total_iters",
    "PolynomialLR": "total_iters", "ConstantLR": "total_iters",
}  # fmt: skip


@dataclass(slots=True)
class Schedule:
    number: int
    rank: int
    cls: str
    optimizer: int
    settings: dict[str, Any] = field(default_factory=dict)
    sightings: list[Event] = field(default_factory=list)

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.sightings[0].id, self.sightings[-1].id)))

    @property
    def base(self) -> float | None:
        """The rate the schedule multiplies: the largest of its groups."""
        listed = self.settings.get("base_lrs")
        known = [rate for each in listed if (rate := number(each)) is not None] if isinstance(listed, list) else []
        return max(known, default=None)

    @property
    def horizon(self) -> float | None:
        """After how many of its own steps the schedule has run its course."""
        own = number(self.settings.get(_HORIZONS.get(self.cls, "")))
        return own if own is not None else self.given("max_steps", "decay_steps")

    @property
    def warmup(self) -> float | None:
        rising = (number(self.settings.get("start_factor")) or 0.0) < (number(self.settings.get("end_factor")) or 0.0)
        if self.cls == "LinearLR" and rising:
            return number(self.settings.get("total_iters"))
        return self.given("warmup_steps")

    def given(self, *names: str) -> float | None:
        """A number that a function of the step was given under a name that means one of ``names``."""
        for key, value in self.settings.items():
            if key.startswith("lambda.") and spellings.canonical(key.removeprefix("lambda.")) in names:
                return number(value)
        return None


def schedules(story: Story, rank: int) -> list[Schedule]:
    found: dict[int, Schedule] = {}
    for event in story.events("schedule", rank):
        at = whole(event.fields.get("schedule"))
        cls, optimizer = str(event.fields.get("cls", "")), whole(event.fields.get("optimizer"))
        one = found.setdefault(at, Schedule(at, rank, cls, optimizer))
        if isinstance(settings := event.fields.get("settings"), dict):
            one.settings.update(settings)
        one.sightings.append(event)
    return list(found.values())


def stepped(story: Story, rank: int) -> int | None:
    """How often schedules were stepped since the first update; None where that is not known."""
    updates = story.events("optimizer", rank)
    if not updates or whole(updates[0].fields.get("count")) != 1:
        return None
    before, last = number(updates[0].fields.get("scheduled")), number(updates[-1].fields.get("scheduled"))
    for event in story.events("schedules", rank):
        last = number(event.fields.get("scheduled"))
    return None if before is None or last is None else int(last - before)


def steps_made(story: Story, rank: int, one: Schedule) -> float | None:
    """How often ``one`` was stepped: exact where it is the only one."""
    total = stepped(story, rank)
    if total is not None and len(schedules(story, rank)) == 1:
        return float(total)
    last = one.sightings[-1]
    count = last.fields.get("count")
    if not isinstance(count, int) or len(one.sightings) < 2 or last.step < 1:
        return None
    return (count - 1) * max(1.0, story.steps(rank) / (last.step + 1))


def rates(story: Story, one: Schedule) -> Track:
    return story.rates(one.rank, one.optimizer).per_step()


def second_epoch(story: Story, rank: int) -> int | None:
    """The step in which a loader was begun again; None where that was not seen."""
    again = [event.step for event in story.events("batch", rank) if whole(event.fields.get("epoch")) >= 1]
    restarts = [
        now.step
        for last, now in zip(story.events("batch", rank), story.events("batch", rank)[1:], strict=False)
        if now.fields.get("loader") == last.fields.get("loader")
        and whole(now.fields.get("index"), -1) == 0
        and whole(last.fields.get("index"), -1) > 0
    ]
    return min([*again, *restarts], default=None)
