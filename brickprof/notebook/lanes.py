"""The bricks of one step as bars in lanes: the host's, nested as they were called, and each stream's of a device.

Enters: a ``Run``, and which step and rank. Leaves: bars in milliseconds from the step's beginning. A device's bars lie
where its own clock says, on the host's axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brickprof.errors import NothingToJudge, UsageError
from brickprof.journal import decode_fields

if TYPE_CHECKING:
    import pandas as pd

    from brickprof.run import Run

MOST_BARS = 4_000
_ENOUGH = 0.8
"""Of the spans of the step that has most: as many as make a step whole."""
_NAMED = 8

Placed = tuple[int, int, str, str]


@dataclass(frozen=True, slots=True)
class Bar:
    lane: str
    depth: int
    start: float
    length: float
    """Both in milliseconds."""
    brick: str
    phase: str


@dataclass(frozen=True, slots=True)
class Timeline:
    step: int
    rank: int
    length: float
    bars: tuple[Bar, ...]
    left_out: int = 0
    """The shortest bars, where there were too many to be drawn."""


def timeline(run: Run, step: int | None = None, rank: int | None = None) -> Timeline:
    """The bars of ``step``, or of one that took neither long nor short; of ``rank``, or of the lowest."""
    spans = run.spans
    whole = spans[spans["phase"] == "step"]
    if whole.empty:
        raise NothingToJudge("no step of this run was timed.", "`brickprof run --level standard` times some of them.")
    rank = int(whole["rank"].min()) if rank is None else rank
    whole, spans = whole[whole["rank"] == rank], spans[(spans["rank"] == rank) & (spans["phase"] != "run")]
    if whole.empty:
        ranks = ", ".join(str(each) for each in sorted(run.spans["rank"].unique())[:_NAMED])
        raise UsageError(f"no step of rank {rank} was timed.", f"There are ranks {ranks}.")
    chosen = _usual(whole, spans) if step is None else step
    row = whole[whole["step"] == chosen]
    if row.empty:
        near = sorted(set(whole["step"].tolist()), key=lambda each: abs(each - chosen))[:_NAMED]
        raise UsageError(f"step {chosen:,} was not timed.", f"Steps near it that were: {_listed(near)}.")
    begin, end = int(row["start_ns"].iloc[-1]), int(row["end_ns"].iloc[-1])
    inner = spans[(spans["step"] == chosen) & (spans["phase"] != "step")]
    found = [*_host(inner, begin), *_device(inner, begin)]
    kept = sorted(found, key=lambda bar: -bar.length)[:MOST_BARS]
    ordered = tuple(sorted(kept, key=lambda bar: (bar.lane != "host", bar.lane, bar.start, -bar.length)))
    return Timeline(chosen, rank, (end - begin) / 1e6, ordered, len(found) - len(kept))


def _usual(whole: pd.DataFrame, spans: pd.DataFrame) -> int:
    """Among the steps whose bricks were all timed, the one of middling length; the first one only where it is alone."""
    counts = spans.groupby("step").size()
    full = whole[whole["step"].map(counts) >= _ENOUGH * counts.max()]
    later = full[full["step"] > full["step"].min()]
    by_length = (full if later.empty else later).sort_values("host_ns", kind="stable")
    return int(by_length["step"].iloc[(len(by_length) - 1) // 2])


def _host(inner: pd.DataFrame, begin: int) -> Iterable[Bar]:
    placed = [(start, end, brick, phase) for brick, phase, start, end, _, _, _ in _rows(inner)]
    return _nested("host", placed, begin)


def _device(inner: pd.DataFrame, begin: int) -> Iterable[Bar]:
    placed: dict[str, list[Placed]] = {}
    for brick, phase, _, _, length, stream, attributes in _rows(inner):
        told = decode_fields(attributes) if isinstance(attributes, str) else None
        start = told.get("device_start_ns") if isinstance(told, dict) else None
        if isinstance(start, int) and isinstance(length, int) and length >= 0:
            lane = "device" if stream is None else f"device, stream {stream}"
            placed.setdefault(lane, []).append((start, start + length, brick, phase))
    return [bar for lane, mine in placed.items() for bar in _nested(lane, mine, begin)]


def _nested(lane: str, placed: Iterable[Placed], begin: int) -> Iterable[Bar]:
    """A bar that begins before another has ended lies below it."""
    open_until: list[int] = []
    for start, end, brick, phase in sorted(placed, key=lambda each: (each[0], -each[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        yield Bar(lane, len(open_until), (start - begin) / 1e6, (end - start) / 1e6, brick, phase)
        open_until.append(end)


def _rows(inner: pd.DataFrame) -> list[tuple[Any, ...]]:
    names = ("brick", "phase", "start_ns", "end_ns", "device_ns", "stream", "attributes")
    columns = [inner[name].astype(object).where(inner[name].notna(), None).tolist() for name in names]
    return list(zip(*columns, strict=True))


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(f"{step:,}" for step in sorted(steps))
