"""A run as a speedscope file: a flame graph of each rank, on the host and on each stream of the device.

Enters: a run. Leaves: JSON as https://www.speedscope.app/file-format-schema.json has it: evented profiles in
nanoseconds since the first of them began. What opens closes, and what opened last closes first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from brickprof.bricks import title
from brickprof.errors import NothingToJudge
from brickprof.telemetry import clocks, lanes
from brickprof.telemetry.exports import times_needed
from brickprof.telemetry.files import whole_text
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.records import Span
    from brickprof.run import Run
    from brickprof.run.parts import Part

NAME, SUFFIX = "speedscope", ".speedscope.json"
TITLE = "flame graphs for speedscope.app, one for each rank and lane (.json, or .json.gz)"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Slices = Callable[["Part"], Iterator[lanes.Slice]]


def write(run: Run, out: Path) -> Path:
    times_needed(run, "speedscope")
    profiles = [(part, slices, lane) for part in run.parts for slices, lane in _lanes(part)]
    if not profiles:
        raise NothingToJudge("This run holds no spans, so there is nothing for speedscope to show.")
    moved = clocks.offsets(run)
    base = min(next(slices(part)).start + moved.get(part.rank, 0) for part, slices, _ in profiles)
    frames = _Frames(run.qualified)
    with whole_text(out) as stream:
        # The frames are known when all profiles are written, so they stand behind them.
        head = {"$schema": SCHEMA, "exporter": "brickprof", "name": clean(run.meta.run_id), "activeProfileIndex": 0}
        stream.write(f'{json.dumps(head)[:-1]},"profiles":[')
        for number, (part, slices, lane) in enumerate(profiles):
            stream.write(",\n" if number else "\n")
            chosen = (each for each in slices(part) if each.lane == lane)
            _profile(stream, f"rank {part.rank} · {lane}", chosen, moved.get(part.rank, 0) - base, frames)
        stream.write(f'\n],"shared":{json.dumps({"frames": [{"name": name} for name in frames.names]})}}}\n')
    return out


def _lanes(part: Part) -> list[tuple[Slices, str]]:
    """Each lane of ``part``, and how its slices are had."""
    both: tuple[Slices, ...] = (lanes.on_host, lanes.on_device)
    return [(slices, lane) for slices in both for lane in dict.fromkeys(each.lane for each in slices(part))]


class _Frames:
    def __init__(self, qualified: bool) -> None:
        self._qualified = qualified
        self._numbers: dict[str, int] = {}

    def number(self, span: Span) -> int:
        return self._numbers.setdefault(title(span.brick, span.phase, qualified=self._qualified), len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


def _profile(stream: TextIO, name: str, slices: Iterator[lanes.Slice], moved: int, frames: _Frames) -> None:
    head = {"type": "evented", "name": name, "unit": "nanoseconds"}
    stream.write(f'{json.dumps(head)[:-1]},"events":[')
    first = last = None
    for what, at, frame in _opened_and_closed(slices, frames):
        stream.write("" if first is None else ",")
        first, last = at + moved if first is None else first, at + moved
        stream.write(f'{{"type":"{what}","frame":{frame},"at":{last}}}')
    stream.write(f'],"startValue":{first or 0},"endValue":{last or 0}}}')


def _opened_and_closed(slices: Iterator[lanes.Slice], frames: _Frames) -> Iterator[tuple[str, int, int]]:
    open_: list[tuple[int, int]] = []
    for _, start, end, span in slices:
        while open_ and open_[-1][0] <= start:
            yield "C", *open_.pop()
        frame = frames.number(span)
        yield "O", start, frame
        open_.append((end, frame))
    while open_:
        yield "C", *open_.pop()
