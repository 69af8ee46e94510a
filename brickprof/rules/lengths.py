"""How many updates a run is to make, while it still goes on.

Enters: a story. Leaves: a ``Length`` where a configuration declares the steps, or where the script's own loops around
the update have so many rounds and no more. Each round of them is taken for an update: micro-batches make it fewer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from brickprof.records import Event
from brickprof.rules import declared
from brickprof.rules.names import whole
from brickprof.rules.story import Story


class Length(NamedTuple):
    updates: float
    said: str
    """Who says so, as the end of a sentence."""
    evidence: tuple[str, ...]


def foreseen(story: Story, rank: int, at: int) -> Length | None:
    """The updates that optimizer ``at`` is to make; None where nothing says it."""
    asked = declared.only(declared.settings(story), "max_steps")
    if asked is not None:
        steps = declared.amount(asked)
        return Length(steps, f"{asked.key} is {steps:,.0f}", (asked.source,)) if steps else None
    looks = [event for event in story.events("loops", rank) if whole(event.fields.get("optimizer")) == at]
    return _looped(looks[0], _loader(story, rank)) if len(looks) == 1 else None


def _looped(event: Event, loader: Event | None) -> Length | None:
    listed = event.fields.get("loops")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    rounds = [whole(row.get("rounds"), 0) for row in rows]
    proof = [event.id]
    if rounds and not rounds[-1] and rows[-1].get("exhausts") and loader is not None:
        rounds[-1] = whole(loader.fields.get("batches"), 0)  # the innermost runs over the data
        proof.append(loader.id)
    if not rounds or min(rounds) < 1:
        return None
    said = " in ".join(_told(row, count) for row, count in zip(reversed(rows), reversed(rounds), strict=True))
    return Length(float(math.prod(rounds)), said, tuple(proof))


def _told(row: dict[str, Any], count: int) -> str:
    return f"the loop over {row.get('over')} at {row.get('site')} has {count:,} rounds"


def _loader(story: Story, rank: int) -> Event | None:
    """The one loader that the training draws from."""
    trained = [event for event in story.events("loader", rank) if event.fields.get("train") is not False]
    return trained[0] if len(trained) == 1 else None
