"""What events say of a run, by place, so that two runs can be held against each other.

Enters: a story. Leaves: entries by place (rank, step, micro-batch, stage within the step, name): settings, batches,
losses, norms at the clip, global norms, learning rates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brickprof.diagnosis.compare.grids import LAST_MICRO
from brickprof.diagnosis.compare.outcome import Entries, Entry, Place, Value
from brickprof.records import Event
from brickprof.rules.names import number, whole
from brickprof.rules.story import Story

_BELONGINGS = frozenset({"tensors", "frozen", "trainable", "params", "initial_lr"})
EVERY_RANK = -1


def settings(story: Story, rank: int) -> Entries:
    """Hyperparameters as they first were, and each time they changed."""
    found: Entries = {}
    for kind in ("optimizer_created", "hyperparameters"):
        for event in story.events(kind, rank):
            groups = event.fields.get("groups")
            for group, told in enumerate(groups if isinstance(groups, list) else ()):
                for name, value in told.items() if isinstance(told, dict) else ():
                    if name not in _BELONGINGS:
                        place = Place(rank, event.step, 0, 0, group, f"{name}{_owner(event, group)}")
                        found[place] = Entry(_plain(value), event.id)
    return found


def batches(story: Story, rank: int) -> Entries:
    found: Entries = {}
    order: dict[tuple[int, int], int] = {}
    for event in story.events("batch", rank):
        loader, fingerprint = whole(event.fields.get("loader")), event.fields.get("fingerprint")
        nth = order[loader, event.step] = order.get((loader, event.step), -1) + 1
        if fingerprint:
            name = f"loader {loader}" if loader else ""
            found[Place(rank, event.step, nth, 1, loader, name)] = Entry(str(fingerprint), event.id)
    return found


def losses(story: Story, rank: int) -> Entries:
    return _numbers(story.events("loss", rank), 3, "value", micro=True)


def step_losses(story: Story, rank: int) -> Entries:
    """One loss a step: runs may cut their steps into different micro-batches."""
    track = story.losses(rank)
    return {
        Place(rank, int(step), 0, 3, 0, ""): Entry(float(track.values[place]), track.evidence(place))
        for place, step in enumerate(track.steps)
    }


def mean_losses(story: Story) -> Entries:
    """The mean over the ranks: what a run with another number of ranks can be held against."""
    seen: dict[int, list[tuple[float, str]]] = {}
    for rank in story.ranks:
        for at, entry in step_losses(story, rank).items():
            if isinstance(entry.value, float):
                seen.setdefault(at.step, []).append((entry.value, entry.evidence))
    complete = {step: told for step, told in seen.items() if len(told) == len(story.ranks)}
    return {
        Place(EVERY_RANK, step, 0, 3, 0, ""): Entry(float(np.mean([value for value, _ in told])), told[0][1])
        for step, told in complete.items()
    }


def clips(story: Story, rank: int) -> Entries:
    return _numbers(story.events("clip", rank), 5, "norm")


def norms(story: Story, rank: int) -> Entries:
    """Global norms as the optimizer found the gradients."""
    events = [event for event in story.events("grad", rank) if event.fields.get("point") == "step"]
    return _numbers(events, 7, "l2")


def rates(story: Story, rank: int) -> Entries:
    found: Entries = {}
    for event in story.events("optimizer", rank):
        told = event.fields.get("lr")
        for group, rate in enumerate(told if isinstance(told, list) else [told]):
            value = number(rate)
            if value is not None:
                place = Place(rank, event.step, LAST_MICRO, 8, group, _owner(event, group).strip())
                found[place] = Entry(value, event.id)
    return found


def _numbers(events: list[Event], stage: int, field: str, *, micro: bool = False) -> Entries:
    found: Entries = {}
    for event in events:
        value = number(event.fields.get(field))
        if value is not None:
            at = whole(event.fields.get("micro")) if micro else LAST_MICRO
            found[Place(event.rank, event.step, at, stage, 0, "")] = Entry(value, event.id)
    return found


def _owner(event: Event, group: int) -> str:
    """Which optimizer and group, where it is not the first of both."""
    optimizer = whole(event.fields.get("optimizer"))
    return f" (optimizer {optimizer}, group {group})" if optimizer or group else ""


def _plain(value: Any) -> Value:
    if isinstance(value, str | bool) or value is None:
        return value
    found = number(value)
    return found if found is not None else str(value)
