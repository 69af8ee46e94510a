"""The steps of a run whose bricks were timed: what their time went to, and the bricks of a few of them one by one.

Enters: a ``Run``, and the step that matters most. Leaves: ``budget``, milliseconds of each phase by step, on the host
and on the device; ``timeline``, the spans of some steps laid out in lanes: the host, and each stream of the device.
Both are read from the first rank that was timed. None where nothing was timed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from brickprof import kernel_names
from brickprof.records import PHASES
from brickprof.run import tables
from brickprof.run.columns import present, values
from brickprof.run.parts import Part
from brickprof.run.step_budget import PARTS, Lane, lanes, taken
from brickprof.text import clean

if TYPE_CHECKING:
    import pandas as pd

    from brickprof.run import Run

MOST_STEPS, MOST_BRICKS = 48, 3_000
_DRAWN = ("step", *PARTS)
_STEP = PHASES.index("step")
Placed = tuple[int, int, str, str]
"""When a brick began, how long it took, its name and its part."""


class Timed:
    """The timed steps of a run's first rank."""

    def __init__(self, run: Run) -> None:
        self._part = next((p for p in run.parts if p.rank >= 0 and p.spans[0].num_rows), None)
        self._qualified = run.qualified

    @cached_property
    def lengths(self) -> dict[int, int]:
        """How long each step took on the host, in nanoseconds; those alone that have bricks inside."""
        if self._part is None:
            return {}
        table = self._part.spans[0].select(["step", "phase", "start_ns", "end_ns"])
        step, phase, start, end = (values(table[name]) for name in table.column_names)
        looked, count = np.unique(step, return_counts=True)
        inside = set(looked[count > 1].tolist())
        whole = phase == _STEP
        rows = zip(step[whole].tolist(), (end - start)[whole].tolist(), strict=True)
        return {at: length for at, length in rows if at in inside and length > 0}

    @cached_property
    def kernels(self) -> dict[int, int]:
        """The number of bricks on the device by step, where kernels or streams were told."""
        if self._part is None:
            return {}
        table = self._part.spans[0]
        told = present(table["stream"]) & present(table["device_ns"])
        steps, counts = np.unique(values(table["step"])[told], return_counts=True)
        return dict(zip(steps.tolist(), counts.tolist(), strict=True))

    def frame(self, steps: Iterable[int]) -> pd.DataFrame:
        """The spans of these steps."""
        import pyarrow as pa
        import pyarrow.compute as pc

        part = self._part
        assert part is not None
        table, damage = part.spans
        few = table.filter(pc.is_in(table["step"], pa.array(sorted(set(steps)), table["step"].type)))
        there = Part(part.rank, lambda: part.written, lambda name: (few, damage))
        there.names = part.names
        return tables.frame([tables.spans_table(there, qualified=self._qualified)])


# -- what the time went to


def budget(timed: Timed, focus: int | None = None) -> dict[str, Any] | None:
    """Milliseconds of each part by step, for the host and, where it was timed, for the device; of many steps of some,
    and ``of`` how many that is."""
    steps = _spread(sorted(timed.lengths), focus)
    if not steps:
        return None
    groups = timed.frame(steps).groupby("step", sort=True)
    found: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for step, spans in groups:
        for lane in lanes(spans):
            found.setdefault(lane.name, []).append((int(str(step)), _milliseconds(lane)))
    return {name: {**_columns(rows), "of": len(timed.lengths)} for name, rows in found.items()} or None


def _spread(steps: Sequence[int], focus: int | None) -> list[int]:
    """Some steps, evenly chosen, and the one that matters."""
    if len(steps) <= MOST_STEPS:
        return list(steps)
    chosen = {steps[at] for at in np.linspace(0, len(steps) - 1, MOST_STEPS, dtype=np.int64).tolist()}
    if focus is not None:
        chosen.add(min(steps, key=lambda step: abs(step - focus)))
    return sorted(chosen)


def _milliseconds(lane: Lane) -> dict[str, float]:
    found = taken(lane)
    return {part: found[part] / 1e6 for part in PARTS}


def _columns(rows: list[tuple[int, dict[str, float]]]) -> dict[str, Any]:
    """The parts that took any time, and the middle of each over the steps."""
    parts = [part for part in PARTS if any(taken[part] > 0 for _, taken in rows)]
    table = [[float(f"{taken[part]:.5g}") for _, taken in rows] for part in parts]
    return {
        "steps": [step for step, _ in rows],
        "parts": parts,
        "ms": table,
        "usual": [float(np.median(column)) for column in table],
    }


# -- bricks one by one


def timeline(timed: Timed, focus: int | None = None) -> list[dict[str, Any]] | None:
    """A few steps in all their bricks: the one that matters, the best known on the device, the slowest, a usual one."""
    chosen = _chosen(timed, focus)
    if not chosen:
        return None
    groups = dict(list(timed.frame(chosen).groupby("step", sort=False)))
    return [_laid_out(step, why, groups[step]) for step, why in chosen.items()]


def _chosen(timed: Timed, focus: int | None) -> dict[int, str]:
    lengths = timed.lengths
    if not lengths:
        return {}
    by_length = sorted(lengths, key=lambda step: lengths[step])
    chosen: dict[int, str] = {}
    if focus in lengths:
        chosen[int(focus or 0)] = "where it began"
    known = {step: count for step, count in timed.kernels.items() if step in lengths}
    if known:
        chosen.setdefault(max(known, key=lambda step: known[step]), "most bricks on the device")
    chosen.setdefault(by_length[len(by_length) // 2], "a usual step")
    chosen.setdefault(by_length[-1], "the slowest")
    return chosen


def _laid_out(step: int, why: str, spans: pd.DataFrame) -> dict[str, Any]:
    """The bricks of one step: names and parts by number, and in each lane the rows that nest."""
    whole = spans[spans["phase"] == "step"].iloc[-1]
    begin, end = int(whole["start_ns"]), int(whole["end_ns"])
    found: dict[str, list[Placed]] = {"host": []}
    for kind, phase, brick, start, stop, device_ns, stream, told in _rows(spans):
        if phase == "run" or stop < begin or start > end:
            continue
        shown = kernel_names.short(brick) if kind == "kernel" and brick else brick or kind
        part, name = _part(kind, phase), clean(shown, limit=160)
        if stop > start:
            found["host"].append((start - begin, stop - start, name, part))
        at = _device_start(told)
        if at is not None and begin <= at < 2 * end - begin and device_ns:
            found.setdefault(_lane(kind, stream), []).append((at - begin, device_ns, name, part))
    names: dict[str, int] = {}
    ordered = sorted(found, key=lambda lane: (lane != "host", not lane.startswith("device"), len(lane), lane))
    drawn = {lane: _nested(found[lane], names) for lane in ordered if found[lane]}
    return {
        "step": step, "why": why, "ns": end - begin, "names": list(names), "parts": list(_DRAWN),
        "lanes": [{"name": lane, **bricks} for lane, bricks in drawn.items()],
    }  # fmt: skip


def _lane(kind: str, stream: int | None) -> str:
    """Blocks are timed by marks in the script's streams, kernels and copies by the profiler, which numbers its own."""
    if kind in ("kernel", "transfer"):
        return "kernels" if stream is None else f"kernels and copies, stream {stream}"
    return f"device, stream {stream}" if stream else "device"


def _rows(spans: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    frame = spans[["kind", "phase", "brick", "start_ns", "end_ns", "device_ns", "stream", "attributes"]].astype(object)
    columns: Any = frame.where(frame.notna(), None)
    return iter(columns.itertuples(index=False, name=None))


def _part(kind: str, phase: str) -> str:
    if kind in ("loader", "transfer", "optimizer"):
        return kind
    return phase if phase in PARTS or phase == "step" else "user"


def _device_start(attributes: Any) -> int | None:
    try:
        value = json.loads(attributes).get("device_start_ns") if isinstance(attributes, str) else None
    except (ValueError, AttributeError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _nested(bricks: list[Placed], names: dict[str, int]) -> dict[str, Any]:
    """Bricks as [start, length, depth, name, part], in order; of very many the longest."""
    kept = sorted(bricks, key=lambda brick: -brick[1])[:MOST_BRICKS]
    kept.sort(key=lambda brick: (brick[0], -brick[1]))
    open_until: list[int] = []
    rows = []
    for start, length, name, part in kept:
        while open_until and open_until[-1] <= start:
            open_until.pop()
        rows.append([start, length, len(open_until), names.setdefault(name, len(names)), _DRAWN.index(part)])
        open_until.append(start + length)
    return {"bricks": rows, "left_out": len(bricks) - len(kept)}
