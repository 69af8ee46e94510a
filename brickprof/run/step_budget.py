"""Where the time of a step goes: to which bricks, on the host and on the device, and how much of it nobody has.

Enters: spans, as a table or as records. Leaves: for the steps that were timed, each phase's share of the step and what
is left, which is called idle: the host outside all bricks, the device with nothing to do. And the lanes of one step, to
be drawn.

A moment belongs to the innermost phase that has it, so shares add up to one. Two bricks are known by what stands around
them: the criterion, from the end of the forward to the beginning of the backward, and the gradients (unscaled, clipped,
averaged), from there to the update. What brickprof itself took in a step that it looked at has a name of its own; where
in the step it lay is not known: what cannot have been outside of all bricks comes off the gradients, which it looks at,
and else off all of them. Host and device are told apart: a brick takes the host the time to ask for it, and the device
the time to do it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from brickprof.bricks import Kind
from brickprof.records import PHASES, Span

if TYPE_CHECKING:
    import pandas as pd

    from brickprof.run.parts import Part

IDLE, LOOKING = "idle", "brickprof"
_LATEST = 32
_WIDTH = 60
CRITERION, GRADIENTS = "criterion", "gradients"
PARTS = (
    "loader", "transfer", "sync", "forward", "recompute", "eval", CRITERION, "backward", GRADIENTS, "optimizer", "user",
    LOOKING, IDLE,
)  # fmt: skip
"""What a moment of a step can belong to, in the order in which it is shown."""
_BETWEEN = {("forward", "backward"): CRITERION, ("backward", "optimizer"): GRADIENTS}
_AROUND = ("loader", "forward", "recompute", "eval", "backward", "optimizer")
_LETTERS = {
    "loader": "L", "transfer": "T", "forward": "F", "recompute": "R", "eval": "E", "backward": "B", "optimizer": "O",
    "user": "U", "sync": "W", CRITERION: "C", GRADIENTS: "G", LOOKING: "P",
}  # fmt: skip
_NOBODY = "·"
_LEGEND = "Forward Criterion Backward Gradients Optimizer Loader Transfer Wait Eval Recompute User brickProf"
Interval = tuple[int, int]


class Lane(NamedTuple):
    """One step on the host or on a device: when what ran, from its beginning on."""

    name: str
    length: int
    parts: list[tuple[int, int, str]]
    looking: int = 0
    """What brickprof took of the host's time, wherever in the step."""
    looks: tuple[Interval, ...] = ()
    """When some of that was, outside of every brick."""


class _Timed(NamedTuple):
    """What of a span is needed here."""

    step: int
    kind: str
    phase: str
    start_ns: int
    end_ns: int
    device_ns: Any
    attributes: Any


def latest(part: Part) -> list[Span]:
    """The spans of a rank's last timed steps: all that the functions below look at, however many there are."""
    import numpy as np

    from brickprof.run import columns

    table = part.spans[0]
    steps, phases = columns.whole(table["step"]), columns.whole(table["phase"])
    timed = np.unique(steps[phases == PHASES.index("step")])
    more = np.intersect1d(timed, steps[phases == PHASES.index("backward")])
    timed = (more if len(more) else timed)[-_LATEST:]
    return list(part.as_spans(columns.rows(table, np.isin(steps, timed))))


class Latest:
    """The same of spans as they come: those of the lowest rank."""

    def __init__(self) -> None:
        self._rank = sys.maxsize
        self._steps: dict[int, list[Span]] = {}

    def add(self, span: Span) -> None:
        """Kernels take the device's time alone."""
        if span.rank > self._rank or span.rank < 0 or span.brick.kind is Kind.KERNEL:
            return
        if span.rank < self._rank:
            self._rank, self._steps = span.rank, {}
        self._steps.setdefault(span.step, []).append(span)
        if len(self._steps) > 3 * _LATEST:
            self._forget()

    def spans(self) -> list[Span]:
        return [span for spans in self._steps.values() for span in spans]

    def _forget(self) -> None:
        """All but the newest steps, which may not be whole yet, and the newest of those that tell most."""
        steps = sorted(self._steps)
        telling = [step for step in steps if any(span.phase == "backward" for span in self._steps[step])]
        kept = {*steps[-_LATEST:], *telling[-_LATEST:]}
        self._steps = {step: spans for step, spans in self._steps.items() if step in kept}


def step_budget(spans: pd.DataFrame | Iterable[Span]) -> dict[str, Any]:
    """Shares of the step by phase, ``host`` and (where it was timed) ``device``; {} where no step was."""
    lanes = [lane for step in _timed(spans) for lane in _lanes(step)]
    told: dict[str, Any] = {}
    for name in ("host", "device"):
        mine = [lane for lane in lanes if lane.name == name and lane.length > 0]
        if mine:
            told[name] = _shares(mine)
    return {**told, "steps": sum(lane.name == "host" for lane in lanes)} if told else {}


def most_idle(spans: pd.DataFrame | Iterable[Span]) -> float:
    """The share of the host's step that is idle if brickprof looked inside of bricks, but for what is known to lie
    outside of them."""
    mine = [lane for step in _timed(spans) for lane in _lanes(step) if lane.name == "host" and lane.length > 0]
    covered = [_covered([*((start, end) for start, end, _ in lane.parts), *lane.looks]) / lane.length for lane in mine]
    return round(1.0 - sum(covered) / len(covered), 4) if covered else 1.0


def _covered(intervals: Iterable[Interval]) -> int:
    total, until = 0, 0
    for start, end in sorted(intervals):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


def lanes(spans: pd.DataFrame | Iterable[Span]) -> list[Lane]:
    """The host's and the device's lane of the last step that was timed on both, else of the last one."""
    found = [_lanes(step) for step in _timed(spans)]
    both = [each for each in found if len(each) > 1]
    return (both or found or [[]])[-1]


def drawn(lane: Lane, width: int = _WIDTH) -> str:
    """A letter for each part of the step that a phase had most of; a dot where nobody did. When brickprof looked is not
    known, but for how long: the last of the dots have its letter."""
    cells = []
    for cell in range(width):
        low, high = cell * lane.length / width, (cell + 1) * lane.length / width
        shares: dict[str, float] = {}
        for start, end, phase in lane.parts:
            inside = min(end, high) - max(start, low)
            if inside > 0:
                shares[phase] = shares.get(phase, 0.0) + inside
        phase = max(shares, key=lambda name: shares[name], default="")
        cells.append(_LETTERS.get(phase, _NOBODY) if 2 * sum(shares.values()) > high - low else _NOBODY)
    dots = [at for at, cell in enumerate(cells) if cell == _NOBODY]
    for at in dots[max(len(dots) - round(width * lane.looking / max(lane.length, 1)), 0) :]:
        cells[at] = _LETTERS[LOOKING]
    return "".join(cells)


def legend(pictures: Iterable[str]) -> str:
    """What the letters stand for that are drawn, each with its own as a capital."""
    drawn = {letter for picture in pictures for letter in picture}
    words = [word for word in _LEGEND.split() if drawn & set(word)]
    return " ".join([*words, f"{_NOBODY} idle"] if _NOBODY in drawn else words)


def taken(lane: Lane) -> dict[str, float]:
    """Nanoseconds of every part of a step; they add up to its length."""
    found: dict[str, float] = defaultdict(float)
    for start, end, phase in lane.parts:
        found[phase] += end - start
    bricks = sum(found.values())
    outside = max(lane.length - bricks, 0.0)
    looking = min(lane.looking, outside + bricks)
    rest = looking - min(looking, outside)
    if rest > 0:
        off = min(rest, found[GRADIENTS])
        found[GRADIENTS] -= off
        kept = 1.0 - (rest - off) / (bricks - off) if bricks > off else 0.0
        found = defaultdict(float, {phase: kept * ns for phase, ns in found.items()})
    found[LOOKING], found[IDLE] = looking, outside - min(looking, outside)
    return found


def _shares(mine: list[Lane]) -> dict[str, float]:
    each = [(taken(lane), lane.length) for lane in mine]
    shares = {part: sum(ns[part] / length for ns, length in each) / len(each) for part in PARTS}
    return {part: round(share, 4) for part, share in shares.items() if share > 0 or part == IDLE}


def _timed(spans: pd.DataFrame | Iterable[Span]) -> list[list[_Timed]]:
    """The spans of each of the last steps whose own span and bricks were written. In some steps nothing but blocks was
    looked at, and so their forward alone was: where others have a backward too, these tell nothing of the rest."""
    rows = sorted(_rows(spans), key=lambda row: row.step)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.step)]
    whole = [each for each in groups if any(row.phase == "backward" for row in each)]
    return whole or [each for each in groups if any(row.phase == "forward" for row in each)]


def _rows(spans: pd.DataFrame | Iterable[Span]) -> Iterable[_Timed]:
    """The spans of the lowest rank's last steps that have a span of their own."""
    return _of_table(spans) if hasattr(spans, "columns") else _of_records(list(spans))


def _of_table(spans: Any) -> Iterable[_Timed]:
    if spans.empty:
        return []
    whole = spans[spans["phase"] == "step"]
    spans = spans[spans["rank"] == whole["rank"].min()]
    whole = whole[whole["rank"] == whole["rank"].min()]
    more = whole[whole["step"].isin(spans.loc[spans["phase"] == "backward", "step"])]
    mine = spans[spans["step"].isin((whole if more.empty else more).tail(_LATEST)["step"])]
    return [_Timed(*row) for row in zip(*(mine[name] for name in _Timed._fields), strict=True)]


def _of_records(spans: list[Span]) -> Iterable[_Timed]:
    rank = min((span.rank for span in spans if span.phase == "step"), default=0)
    timed, more = (
        {span.step for span in spans if span.phase == it and span.rank == rank} for it in ("step", "backward")
    )
    whole = set(sorted(timed & more or timed)[-_LATEST:])
    return [
        _Timed(span.step, span.brick.kind.value, span.phase, span.start_ns, span.end_ns, span.device_ns,
               span.attributes)
        for span in spans
        if span.rank == rank and span.step in whole
    ]  # fmt: skip


def _lanes(step: list[_Timed]) -> list[Lane]:
    whole = [row for row in step if row.phase == "step"][-1]
    inner = [row for row in step if row.phase not in ("step", "run")]
    begin, end = int(whole.start_ns), int(whole.end_ns)
    phases = [_phase(row.kind, row.phase) for row in inner]
    host = zip(inner, phases, strict=True)
    flat = _flat(((int(row.start_ns), int(row.end_ns), phase) for row, phase in host), (begin, end))
    looking = max(min(_told(whole.attributes, "looking_ns") or 0, end - begin), 0)
    found = [Lane("host", end - begin, _filled(flat), looking, _looks(whole.attributes, end - begin))]
    device = _device_lane(whole, inner, phases)
    return found if device is None else [*found, device]


def _device_lane(whole: _Timed, inner: list[_Timed], phases: list[str]) -> Lane | None:
    start = _told(whole.attributes, "device_start_ns")
    if start is None or whole.device_ns is None or not whole.device_ns > 0:
        return None
    end = start + int(whole.device_ns)
    parts = []
    for row, phase in zip(inner, phases, strict=True):
        at = _told(row.attributes, "device_start_ns")
        if at is not None and row.device_ns is not None and row.device_ns >= 0:
            parts.append((at, at + int(row.device_ns), phase))
    return Lane("device", end - start, _filled(_flat(parts, (start, end))))


def _filled(row: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """With what stands between two phases, where it is known what that is; copies and waits may lie in it."""
    around = [at for at, part in enumerate(row) if part[2] in _AROUND]
    found = list(row)
    for first, second in pairwise(around):
        name = _BETWEEN.get((row[first][2], row[second][2]))
        if name is not None:
            gaps = pairwise(row[first : second + 1])
            found += [(before[1], after[0], name) for before, after in gaps if before[1] < after[0]]
    return sorted(found)


def _looks(attributes: Any, length: int) -> tuple[Interval, ...]:
    """Stretches of the step as its span has them; journals can be damaged or come from elsewhere."""
    listed = _attribute(attributes, "looks")
    rows = [row for row in listed if isinstance(row, list) and len(row) == 2] if isinstance(listed, list) else []
    whole = [(start, end) for start, end in rows if isinstance(start, int) and isinstance(end, int)]
    return tuple((start, end) for start, end in whole if 0 <= start < end <= length)


def _told(attributes: Any, name: str) -> int | None:
    value = _attribute(attributes, name)
    return value if isinstance(value, int) else None


def _attribute(attributes: Any, name: str) -> Any:
    try:
        told = json.loads(attributes) if isinstance(attributes, str) else attributes
        return told.get(name)
    except (ValueError, AttributeError):
        return None


def _phase(kind: str, phase: str) -> str:
    if kind in ("loader", "transfer", "optimizer"):
        return kind
    return phase if phase in PARTS else "user"


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
