"""The course of a run in a few numbers, for the ``run`` part of diagnosis.json: what a report draws without the run.

Enters: the story. Leaves: ``curves`` (loss and gradient norm: where they began and ended, their extremes, and at most
96 cells that share one axis of steps, in each the value that stands out most) and ``layers`` (the largest gradient of
each block, in its first and in its last look). What is not finite is a word, as strict JSON has no number for it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from brickprof.rules.story import Story, Track
from brickprof.rules.story.grids import Grid

_MOST_CELLS = 96
_MOST_LAYERS = 48
_LARGEST = 8

Value = float | str


def course_facts(story: Story) -> dict[str, Any]:
    """Of the lowest rank that trained."""
    for rank in story.ranks:
        curves, layers = _curves(story, rank), _layers(story.grid("grad", rank))
        if curves or layers:
            return {name: told for name, told in (("curves", curves), ("layers", layers)) if told}
    return {}


def _curves(story: Story, rank: int) -> dict[str, Any]:
    tracks = {"loss": story.losses(rank), "grad_norm": story.norms(rank)}
    told = {name: track for name, track in tracks.items() if len(track)}
    if not told:
        return {}
    first = min(int(track.steps[0]) for track in told.values())
    last = max(int(track.steps[-1]) for track in told.values())
    cells = min(_MOST_CELLS, max(len(np.unique(track.steps)) for track in told.values()))
    edges = first + np.arange(cells + 1) * ((last - first + 1) / cells)
    return {name: {"rank": rank, "from": first, "to": last, **_curve(track, edges)} for name, track in told.items()}


def _curve(track: Track, edges: Any) -> dict[str, Any]:
    broken = np.flatnonzero(~np.isfinite(track.values))
    finite = track.finite()
    told: dict[str, Any] = {"points": len(track), "first": _point(track, 0), "last": _point(track, len(track) - 1)}
    if len(finite):
        told["lowest"] = _point(finite, int(np.argmin(finite.values)))
        told["highest"] = _point(finite, int(np.argmax(finite.values)))
    if len(broken):
        told["not_finite"] = {"points": len(broken), "first_step": int(track.steps[broken[0]])}
    return {**told, "cells": _cells(track, edges)}


def _point(track: Track, place: int) -> dict[str, Any]:
    return {"step": int(track.steps[place]), "value": _word(track.values[place])}


def _cells(track: Track, edges: Any) -> list[Value | None]:
    """What each stretch of steps is to show; None where nothing was told."""
    bounds = np.searchsorted(track.steps, edges, side="left")
    return [_telling(track.values[low:high]) for low, high in pairwise(bounds)]


def _telling(values: Any) -> Value | None:
    """What is not finite, else the value furthest from the middle of all: a spike stays a spike."""
    if not len(values):
        return None
    finite = np.isfinite(values)
    if not finite.all():
        return _word(values[~finite][0])
    ordered = np.sort(values)  # quicker than a median, of so few
    middle = ordered[(len(values) - 1) // 2] / 2 + ordered[len(values) // 2] / 2
    return _word(values[int(np.argmax(np.abs(values - middle)))])


def _word(value: Any) -> Value:
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else str(number)


# -- layers


def _layers(grid: Grid) -> list[dict[str, Any]]:
    if not len(grid):
        return []
    looked = grid.looked
    firsts = np.argmax(looked, axis=0)
    lasts = len(grid) - 1 - np.argmax(looked[::-1], axis=0)
    several = len({brick.model for brick in grid.bricks}) > 1
    places: dict[str, list[int]] = {}
    for place, brick in enumerate(grid.bricks):
        places.setdefault(brick.name(qualified=several), []).append(place)
    rows = []
    for name, mine in places.items():
        first, last = int(firsts[mine].min()), int(lasts[mine].max())
        rows.append({
            "brick": name, "first": _largest(grid, first, mine),
            "last": _largest(grid, last, mine), "first_step": int(grid.steps[first]),
            "last_step": int(grid.steps[last]),
        })  # fmt: skip
    return _few(rows)


def _largest(grid: Grid, look: int, places: list[int]) -> Value:
    """The largest of one block in one look; a word where something of it is not finite."""
    for name in ("nan", "inf"):
        if (grid.row(name, look)[places] > 0).any():  # not so where nobody counted
            return name
    known = grid.row("absmax", look)[places]
    known = known[~np.isnan(known)]
    return _word(known.max()) if len(known) else "nan"


def _few(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All of them, or the largest and as many others as there is room for, evenly spread, in their order."""
    if len(rows) <= _MOST_LAYERS:
        return rows
    size = [math.inf if isinstance(row["last"], str) else row["last"] for row in rows]
    kept = set(sorted(range(len(rows)), key=lambda at: -size[at])[:_LARGEST])
    kept |= set(np.linspace(0, len(rows) - 1, _MOST_LAYERS - _LARGEST).round().astype(int).tolist())
    return [row for at, row in enumerate(rows) if at in kept]
