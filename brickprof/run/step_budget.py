"""Where the time of a step goes: to which bricks, on the host and on the device, and how much of it nobody has.

Enters: spans. Leaves: for the steps that were timed, each phase's share of the step and what is left, which is called
idle: the host outside all bricks, the device with nothing to do. And the lanes of one step, to be drawn.

A moment belongs to the innermost phase that has it, so shares add up to one. What brickprof itself took in a step that
it looked at has a name of its own. Host and device are told apart: a brick
takes the host the time to ask for it, and the device the time to do it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

IDLE, LOOKING = "idle", "brickprof"
_LATEST = 32
_ORDER = ("loader", "transfer", "forward", "recompute", "eval", "backward", "optimizer", "user")
Interval = tuple[int, int]


class Lane(NamedTuple):
    """One step on the host or on a device: when what ran, from its beginning on."""

    name: str
    length: int
    parts: list[tuple[int, int, str]]
    looking: int = 0
    """What brickprof took of the host's time, wherever in the step."""


def step_budget(spans: pd.DataFrame) -> dict[str, Any]:
    """Shares of the step by phase, ``host`` and (where it was timed) ``device``; {} where no step was."""
    lanes = [lane for step in _timed(spans) for lane in _lanes(step)]
    told: dict[str, Any] = {}
    for name in ("host", "device"):
        mine = [lane for lane in lanes if lane.name == name and lane.length > 0]
        if mine:
            told[name] = _shares(mine)
    return {**told, "steps": sum(lane.name == "host" for lane in lanes)} if told else {}


def lanes(spans: pd.DataFrame) -> list[Lane]:
    """The host's and the device's lane of the last step that was timed on both, else of the last one."""
    found = [_lanes(step) for step in _timed(spans)]
    both = [each for each in found if len(each) > 1]
    return (both or found or [[]])[-1]


def _shares(mine: list[Lane]) -> dict[str, float]:
    taken: dict[str, float] = defaultdict(float)
    for lane in mine:
        for start, end, phase in lane.parts:
            taken[phase] += (end - start) / lane.length / len(mine)
    ordered = {phase: round(taken[phase], 4) for phase in _ORDER if taken.get(phase)}
    left = max(1.0 - sum(taken.values()), 0.0)
    looking = min(sum(lane.looking / lane.length for lane in mine) / len(mine), left)
    if looking:
        ordered[LOOKING] = round(looking, 4)
    return {**ordered, IDLE: round(left - looking, 4)}


def _timed(spans: pd.DataFrame) -> list[pd.DataFrame]:
    """The spans of each of the last steps whose own span and bricks were written."""
    if spans.empty:
        return []
    whole = spans[spans["phase"] == "step"]
    whole = whole[whole["rank"] == whole["rank"].min()].tail(_LATEST)
    mine = spans[(spans["rank"] == whole["rank"].min()) & spans["step"].isin(whole["step"])]
    groups = [part for _, part in mine.groupby("step", sort=True)]
    return [part for part in groups if len(part) > 1 and part["phase"].isin(("forward", "backward")).any()]


def _lanes(step: pd.DataFrame) -> list[Lane]:
    whole = step[step["phase"] == "step"].iloc[-1]
    inner = step[(step["phase"] != "step") & (step["phase"] != "run")]
    begin, end = int(whole["start_ns"]), int(whole["end_ns"])
    phases = [_phase(kind, phase) for kind, phase in zip(inner["kind"], inner["phase"], strict=True)]
    host = zip(inner["start_ns"], inner["end_ns"], phases, strict=True)
    flat = _flat(((int(a), int(b), phase) for a, b, phase in host), (begin, end))
    found = [Lane("host", end - begin, flat, _told(whole["attributes"], "looking_ns") or 0)]
    device = _device_lane(whole, inner, phases)
    return found if device is None else [*found, device]


def _device_lane(whole: Any, inner: pd.DataFrame, phases: list[str]) -> Lane | None:
    start = _told(whole["attributes"], "device_start_ns")
    if start is None or whole["device_ns"] is None or not whole["device_ns"] > 0:
        return None
    end = start + int(whole["device_ns"])
    parts = []
    for told, length, phase in zip(inner["attributes"], inner["device_ns"], phases, strict=True):
        at = _told(told, "device_start_ns")
        if at is not None and length is not None and length >= 0:
            parts.append((at, at + int(length), phase))
    return Lane("device", end - start, _flat(parts, (start, end)))


def _told(attributes: Any, name: str) -> int | None:
    try:
        value = json.loads(attributes).get(name) if isinstance(attributes, str) else None
    except (ValueError, AttributeError):
        return None
    return value if isinstance(value, int) else None


def _phase(kind: str, phase: str) -> str:
    if kind in ("loader", "transfer", "optimizer"):
        return kind
    return phase if phase in _ORDER else "user"


def _flat(parts: Iterable[tuple[int, int, str]], within: Interval) -> list[tuple[int, int, str]]:
    """Parts that may lie in each other as a row of parts that do not: of two, the shorter one has the moment."""
    low, high = within
    inside = [(max(start, low), min(end, high), phase) for start, end, phase in parts]
    inside = sorted((part for part in inside if part[0] < part[1]), key=lambda part: part[0] - part[1])
    edges = sorted({edge for start, end, _ in inside for edge in (start, end)})
    place = {edge: at for at, edge in enumerate(edges)}
    owners = [""] * len(edges)
    for start, end, phase in inside:
        owners[place[start] : place[end]] = [phase] * (place[end] - place[start])
    row: list[tuple[int, int, str]] = []
    for owner, start, end in zip(owners, edges, edges[1:], strict=False):
        if owner and row and row[-1][1:] == (start - low, owner):
            row[-1] = (row[-1][0], end - low, owner)
        elif owner:
            row.append((start - low, end - low, owner))
    return row
