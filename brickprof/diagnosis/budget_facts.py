"""Bricks that take longer than somebody said they may, for the ``run`` part of diagnosis.json.

Enters: a run and its story. Leaves: ``over_budget`` (bricks with a declared budget whose usual time is above it) and
``unsteady`` (those for which steps were traced in full, and why); nothing where nothing is. Budgets that were learned
are no promise of anybody's: half of all times are above a median.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from brickprof.records import BUDGET, DECLARED, PHASES
from brickprof.rules.budgeted import Took, fare
from brickprof.rules.names import number, whole

if TYPE_CHECKING:
    from brickprof.rules.story import Story
    from brickprof.run import Run
    from brickprof.run.parts import Part

_MOST = 16
Key = tuple[str, str]  # brick, phase


def budget_facts(run: Run, story: Story) -> dict[str, Any]:
    times: dict[Key, list[Took]] = {}
    for part in run.parts:
        if part.rank >= 0:
            _gather(part, times, qualified=run.qualified)
    rows = [row for key, found in times.items() if (row := _over(key, found))]
    over = sorted(rows, key=lambda row: row["efficiency"])[:_MOST]
    unsteady = [row for part in run.parts if part.rank >= 0 for row in _unsteady(part, story, qualified=run.qualified)]
    return {name: told for name, told in (("over_budget", over), ("unsteady", unsteady[:_MOST])) if told}


def _gather(part: Part, times: dict[Key, list[Took]], *, qualified: bool) -> None:
    """The times of spans with a declared budget, of which most runs have none."""
    table = part.spans[0]
    if not table.num_rows:
        return
    import pyarrow.compute as pc

    found = table.filter(pc.match_substring(table["attributes"], f'"{DECLARED}"'))
    names = ("brick", "phase", "step", "start_ns", "end_ns", "device_ns", "attributes")
    for brick, phase, step, start, end, device, told in zip(*(found[each].to_pylist() for each in names), strict=True):
        if (budget := _budget(told)) is None or not 0 <= phase < len(PHASES):
            continue
        key = part.names.brick(brick).name(qualified=qualified), PHASES[phase]
        took = None if device is None or device < 0 else device / 1e3
        times.setdefault(key, []).append(Took((part.rank, step), budget, (end - start) / 1e3, took))


def _budget(told: str) -> float | None:
    try:
        budget = number(json.loads(told).get(BUDGET))
    except (ValueError, AttributeError):
        return None
    return budget if budget is not None and budget > 0 else None


def _over(key: Key, found: list[Took]) -> dict[str, Any] | None:
    """How a brick fares whose usual time is above its budget: on the device where that is known, else on the host."""
    taken = fare(found)
    if taken.us <= taken.budget_us:
        return None
    return {
        "brick": key[0], "phase": key[1], "on": taken.on, "us": round(taken.us, 3), "budget_us": taken.budget_us,
        "efficiency": round(taken.budget_us / taken.us, 4), "over": taken.over, "steps": taken.steps,
    }  # fmt: skip


def _unsteady(part: Part, story: Story, *, qualified: bool) -> list[dict[str, Any]]:
    return [
        {
            "brick": part.names.brick(whole(told.get("brick"))).name(qualified=qualified),
            "phase": str(told.get("phase") or ""), "step": event.step, "reason": str(told.get("reason") or ""),
            "us": (number(told.get("mean_ns")) or 0.0) / 1e3, "declared": told.get("declared") is True,
            **{name: number(told.get(name)) for name in ("cv", "budget_us", "efficiency")},
        }
        for event in story.events("unsteady", part.rank)
        for told in [event.fields]
    ]  # fmt: skip
