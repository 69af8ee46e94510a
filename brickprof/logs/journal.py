"""Our own recordings: a run's folder, or a file of one.

Enters: what was named on the command line. Leaves: whether it is one (``folder``) and the ``Run`` itself (``run``);
and, of an ``events.jsonl`` that comes packed or through a pipe, its losses, rates and gradient norms as of other logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brickprof.errors import NotARun
from brickprof.journal import EVENTS, META, PROCESS
from brickprof.journal.lines import decode, read_events
from brickprof.logs.reading.model import Block, Fact, Head, Item, Skipped, block
from brickprof.logs.reading.source import Source
from brickprof.records import Event, RunMeta
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.run import Run

_ROWS = 4096
_START = b'{"seq":'
_NAMES = {"loss": ("loss", "value"), "grad": ("grad_norm", "l2")}
"""Kinds of events that hold one number of a step: what it is called here, and the field it stands in."""


class Journal:
    name = "brickprof"
    title = "recordings of brickprof itself"
    by_lines = True

    def sniff(self, head: Head) -> float:
        line = head.start.split(b"\n", 1)[0]
        return 0.99 if line.startswith(_START) and decode(line) is not None else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        rows: dict[str, tuple[list[int], list[int], list[float]]] = {}
        for number, line in source.lines():
            event = decode(line)
            if event is None:
                if line.strip():
                    yield Skipped(1, ((number, clean(line.decode("utf-8", "replace"), limit=120)),))
                continue
            if event.kind == "exception":
                yield Fact("exception", number, _exception(event))
            for name, step, value in _numbers(event):
                lines, steps, values = rows.setdefault(name, ([], [], []))
                lines.append(number)
                steps.append(step)
                values.append(value)
                if len(lines) >= _ROWS:
                    yield _made(name, rows.pop(name))
        for name, row in rows.items():
            yield _made(name, row)


def folder(path: str | Path) -> bool:
    """Whether this is the folder of a run, a file in one, or the events of one."""
    from brickprof.run.places import is_run

    place = Path(path)
    try:
        if place.is_dir():
            return is_run(place) and _holds_a_journal(place)
        if place.name not in (EVENTS, PROCESS, META) or not place.is_file():
            return False
        with place.open("rb") as file:
            start = file.read(len(_START))
        return start == _START or (place.name == META and folder(place.parent))
    except (OSError, ValueError):
        return False


def run(path: str | Path) -> Run:
    """The run that ``path`` belongs to; of events that lie alone, a run of those."""
    from brickprof.run import Run

    try:
        return Run.open(path)
    except NotARun:
        place = Path(path)
        if not place.is_file():
            raise
        events, _ = read_events(place, 0)
        if not events:
            raise
        return Run.from_records(events, RunMeta(run_id=clean(place.stem), source="brickprof"))


def _holds_a_journal(folder: Path) -> bool:
    """``meta.json`` is a name that others use too: it is a run where events lie beside it."""
    from brickprof.journal import rank_folders

    return (folder / PROCESS).is_file() or any((home / EVENTS).is_file() for home in rank_folders(folder).values())


def _numbers(written: Event) -> Iterator[tuple[str, int, float]]:
    """Name, step and value of what an event holds."""
    from brickprof.run.parts import unpacked

    for event in unpacked(written):
        if event.kind in _NAMES:
            name, field = _NAMES[event.kind]
            value = event.fields.get(field)
        elif event.kind == "optimizer":
            rates = event.fields.get("lr")
            name, value = "lr", rates[0] if isinstance(rates, list) and rates else rates
        else:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, event.step, float(value)


def _exception(event: Event) -> dict[str, Any]:
    frames = event.fields.get("frames")
    return {
        "type": clean(event.fields.get("type", "Exception")),
        "message": clean(event.fields.get("message", "")),
        "frames": [clean(frame) for frame in frames[:50]] if isinstance(frames, list) else [],
    }


def _made(name: str, row: tuple[list[int], list[int], list[float]]) -> Block:
    lines, steps, values = row
    return block(lines, {"step": steps, name: values})


READER = Journal()
