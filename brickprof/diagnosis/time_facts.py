"""Where the time of a run went, for the ``run`` part of diagnosis.json.

Enters: a run. Leaves: ``bricks`` (those that cost most, each with the time that is its own and no brick's inside it),
``step_budget`` and ``lanes`` (where a step goes), ``kernels`` (by their time on the device), ``kernels_more`` (how many
have no row there), ``kernels_unwritten`` (how many launches have no span), ``unprofiled`` (where a run on a CUDA device
lacks most of those) and ``looking`` (what each probe cost); nothing where nothing was timed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof.records import PHASES
from brickprof.run.columns import whole
from brickprof.run.kernel_times import PROFILER, kernel_times, of_part, once, unprofiled, unwritten, without_span
from brickprof.run.step_budget import drawn, lanes, latest, step_budget

if TYPE_CHECKING:
    from brickprof.run import Run
    from brickprof.run.parts import Part

_MOST_BRICKS, _MOST_KERNELS, _MOST_PROBES = 16, 16, 8
_AROUND = ("run", "step")
"""Phases that hold bricks and are none."""


@dataclass(slots=True)
class _Cost:
    """What one brick in one phase took, over all steps that were timed."""

    host: float = 0.0
    device: float = 0.0
    timed_on_device: int = 0
    calls: int = 0
    steps: set[tuple[int, int]] = field(default_factory=set)

    def a_step(self, on: str) -> float:
        """What a step takes that has any, in ns. Not every call is timed on a device: those that are stand for all."""
        if on == "host":
            return self.host / len(self.steps)
        return self.device / max(self.timed_on_device, 1) * self.calls / len(self.steps)


def time_facts(run: Run | None) -> dict[str, Any]:
    timed = [part for part in run.parts if part.rank >= 0 and part.spans[0].num_rows] if run is not None else []
    found: dict[str, Any] = {"looking": dict(list(run.costs.items())[:_MOST_PROBES])} if run is not None else {}
    if run is not None and timed:
        costs, step_ns = _costs(timed, qualified=run.qualified)
        recent = latest(timed[0])
        found["bricks"] = _bricks(costs, step_ns)
        found["step_budget"] = step_budget(recent)
        found["lanes"] = [{"name": lane.name, "ms": lane.length / 1e6, "drawn": drawn(lane)} for lane in lanes(recent)]
        found["kernels"], found["kernels_more"] = _kernels(timed, qualified=run.qualified)
        found["kernels_unwritten"] = without_span(timed)
    if run is not None and not any(row["source"] == PROFILER for row in found.get("kernels") or ()):
        found["unprofiled"] = unprofiled(part for part in run.parts if part.rank >= 0)
    return {name: told for name, told in found.items() if told}


def _costs(timed: list[Part], *, qualified: bool) -> tuple[dict[tuple[str, str, str], _Cost], dict[str, float]]:
    """By brick, kind and phase; and a usual step on the host and on the device."""
    costs: dict[tuple[str, str, str], _Cost] = defaultdict(_Cost)
    usual: dict[str, list[Any]] = {"host": [], "device": []}
    for part in timed:
        table = once(part)
        steps, phases, bricks = (whole(table[name]) for name in ("step", "phase", "brick"))
        starts, ends, device = whole(table["start_ns"]), whole(table["end_ns"]), whole(table["device_ns"], -1)
        own, own_device = _own(whole(table["id"]), whole(table["parent"]), starts, ends, device)
        step = phases == PHASES.index("step")
        usual["host"].append((ends - starts)[step])
        usual["device"].append(device[step & (device > 0)])
        order = np.lexsort((steps, phases, bricks))
        keys = bricks[order] * len(PHASES) + phases[order]
        for low, high in _stretches(keys):
            rows = order[low:high]
            phase, brick = _phase(int(phases[rows[0]])), part.names.brick(int(bricks[rows[0]]))
            cost = costs[brick.name(qualified=qualified), brick.kind.value, phase]
            on_device = rows[device[rows] >= 0]
            cost.host += float(own[rows].sum())
            cost.device += float(own_device[on_device].sum())
            cost.timed_on_device += len(on_device)
            cost.calls += len(rows)
            cost.steps |= {(part.rank, step) for step in np.unique(steps[rows]).tolist()}
        _count_unwritten(costs, part, qualified=qualified)
    return costs, {name: float(np.median(np.concatenate(each))) for name, each in usual.items() if any(map(len, each))}


def _count_unwritten(costs: dict[tuple[str, str, str], _Cost], part: Part, *, qualified: bool) -> None:
    """Launches without a span are calls of their kernel too, and no time of the block that they were made in."""
    for each in unwritten(part, qualified=qualified):
        cost = costs[each.name, each.kind.value, each.phase]
        cost.device += each.device_ns
        cost.timed_on_device += each.times
        cost.calls += each.times
        cost.steps.add((part.rank, each.step))
        block = each.block and costs.get((each.block.name(qualified=qualified), each.block.kind.value, each.phase))
        if block:
            block.device = max(block.device - each.device_ns, 0.0)


def _own(ids: Any, parents: Any, starts: Any, ends: Any, device: Any) -> tuple[Any, Any]:
    """The time of each span less that of the spans inside it, on the host and on the device."""
    own, own_device = (ends - starts).astype(float), np.maximum(device, 0).astype(float)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], parents), len(ids) - 1)
    holder = order[place]
    inside = np.flatnonzero((ids[holder] == parents) & (parents != ids))
    shared = np.minimum(ends[inside], ends[holder[inside]]) - np.maximum(starts[inside], starts[holder[inside]])
    np.subtract.at(own, holder[inside], np.maximum(shared, 0))
    np.subtract.at(own_device, holder[inside], np.maximum(device[inside], 0))
    return np.maximum(own, 0), np.maximum(own_device, 0)


def _stretches(keys: Any) -> list[tuple[int, int]]:
    """Where equal keys begin and end, in keys that are sorted."""
    edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    return list(pairwise(edges))


def _phase(number: int) -> str:
    return PHASES[number] if 0 <= number < len(PHASES) else str(number)


def _bricks(costs: dict[tuple[str, str, str], _Cost], step_ns: dict[str, float]) -> list[dict[str, Any]]:
    """The dearest in a step first: by their time on the device where that is known of any, else by the host's."""
    told = {key: cost for key, cost in costs.items() if key[2] not in _AROUND and key[1] != "step"}
    by_device = "device" in step_ns and any(cost.timed_on_device for cost in told.values())
    on = "device" if by_device else "host"
    size = {key: cost.a_step(on) for key, cost in told.items()}
    return [
        _brick(key, told[key].calls, size[key], on, step_ns.get(on))
        for key in sorted(told, key=lambda key: -size[key])[:_MOST_BRICKS]
        if size[key] > 0
    ]


def _brick(key: tuple[str, str, str], calls: int, ns: float, on: str, step_ns: float | None) -> dict[str, Any]:
    name, kind, phase = key
    return {
        "brick": name, "kind": kind, "phase": phase, "on": on, "ms_a_step": _short(ns / 1e6),
        "share": None if not step_ns else _short(ns / step_ns), "calls": calls,
    }  # fmt: skip


def _kernels(timed: list[Part], *, qualified: bool) -> tuple[list[dict[str, Any]], int]:
    """The dearest, and how many others there are."""
    found = kernel_times([of_part(part, qualified=qualified) for part in timed])
    rows = found[:_MOST_KERNELS]
    told = [{**row, "share": _short(row["share"]), "mean_us": _short(row["mean_us"])} for row in rows]
    return told, len(found) - len(rows)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
