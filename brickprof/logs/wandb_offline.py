"""Weights & Biases run files: ``run-*.wandb``, as they lie in ``wandb/offline-run-*`` and ``wandb/run-*``.

Enters: such a file, whole or of a run that died. Leaves: the history as series, the configuration as settings, the exit
code, what the script printed where it tells of an exception, and the machine's own numbers (``system/...``).

The file is a LevelDB log of protobuf records. It is read here, field by field: wandb itself has no reader of it that
others may import. Of the records only those fields are looked at whose numbers stand below (``wandb_internal.proto``);
those numbers have never changed, and newer fields are stepped over.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from brickprof.logs.reading import frames, settings, wire
from brickprof.logs.reading.model import Block, Fact, Head, Item, block
from brickprof.logs.reading.source import Source
from brickprof.text import clean

_MAGIC = b":W&B"
_HEADER = 7
_HISTORY, _CONFIG, _STATS, _RUN, _EXIT, _OUTPUT, _OUTPUT_RAW, _PREEMPTING = 2, 5, 7, 17, 18, 4, 13, 23
_ITEM, _STEP = 1, 2
_KEY, _NESTED, _BOOLEAN, _INTEGER, _NUMBER = 1, 2, 4, 5, 6
_JSON = (8, 16)
_ROWS = 4096
_MOST_NAMES = 4_000
_MOST_DEEP = 8
_LONGEST_JSON = 1 << 20
_MOST_LINES = 200
_LONGEST_LINE = 2_000
_OWN = {"_step": "step", "_timestamp": "timestamp"}
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SYSTEM = re.compile(r"gpu\.(?:process\.)?\d{1,4}\.(?:gpu|powerWatts|temp|memoryAllocatedBytes)|cpu")
"""What is kept of the machine's own numbers as it is; shares of memory are no memory."""
_RESIDENT = "proc.memory.rssMB"
_RAISED = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)): ?(.*)")
_FRAME = re.compile(r'File "([^"]{1,500})", line (\d{1,9})(?:, in (.{1,200}))?')


class Wandb:
    name = "wandb"
    title = "Weights & Biases run files (.wandb)"

    def sniff(self, head: Head) -> float:
        return 1.0 if head.start.startswith(_MAGIC) else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        reading = _Reading()
        with source.open() as stream:
            for number, (at, record) in enumerate(frames.leveldb(stream, source.damage, header=_HEADER), 1):
                try:
                    yield from reading.record(number, record)
                except ValueError as error:
                    frames.say(source.damage, f"the record at byte {at}: {error}")
        yield from reading.rest()


class _Reading:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], tuple[list[int], list[list[float]]]] = {}
        self._names: set[str] = set()
        self._step = -1
        self._printed = _Printed()

    def record(self, number: int, record: bytes) -> Iterator[Item]:
        for kind, held in wire.fields(record):
            if not isinstance(held, bytes):
                continue
            if kind == _HISTORY:
                yield from self._row(number, self._history(held))
            elif kind == _STATS:
                yield from self._row(number, self._stats(held))
            elif kind == _CONFIG:
                yield from _setting(number, held)
            elif kind == _RUN:
                yield from _run(number, held)
            elif kind in (_OUTPUT, _OUTPUT_RAW):
                yield from self._printed.add(number, wire.text(_last(held, 3, b"")))
            elif kind == _PREEMPTING:
                yield Fact("ended", number, {"how": "preempted", "text": "the run said that it was preempted"})
            elif kind == _EXIT:
                code = wire.signed(_number(_last(held, 1, 0)))
                yield Fact("finished" if not code else "note", number, {"text": f"exit code {code}", "code": code})

    def rest(self) -> Iterator[Item]:
        for columns, rows in self._rows.items():
            yield _made(columns, rows)
        yield from self._printed.rest()

    def _history(self, record: bytes) -> dict[str, float]:
        """One row: a step, and what was logged at it."""
        row: dict[str, float] = {}
        step = None
        for field, held in wire.fields(record):
            if field == _ITEM and isinstance(held, bytes):
                name, value = _item(held)
                _numbers(name, value, row)
            elif field == _STEP and isinstance(held, bytes):
                step = wire.signed(_number(_last(held, 1, 0)))
        row = {_OWN.get(name, name): value for name, value in row.items()}
        if "step" not in row:
            self._step = step if step is not None else self._step + 1
            row["step"] = float(self._step)
        self._step = int(row["step"]) if math.isfinite(row["step"]) else self._step
        return row if len(row) > 1 else {}

    def _stats(self, record: bytes) -> dict[str, float]:
        """The machine's own numbers; they stand at the step that was logged last."""
        row = {"step": float(max(self._step, 0))}
        for field, held in wire.fields(record):
            if field == 3 and isinstance(held, bytes):
                name, value = _item(held)
                if _SYSTEM.fullmatch(name):
                    _numbers(f"system/{name}", value, row)
                elif name == _RESIDENT and isinstance(value, (int, float)) and 0 < value < 1e12:
                    row["system/rss"] = value * 2.0**20
        return row if len(row) > 1 else {}

    def _row(self, number: int, row: Mapping[str, float]) -> Iterator[Block]:
        if len(self._names) < _MOST_NAMES:
            self._names.update(row)
        known = {name: row[name] for name in sorted(row) if name in self._names}
        if not known:
            return
        columns = tuple(known)
        lines, values = self._rows.setdefault(columns, ([], []))
        lines.append(number)
        values.append(list(known.values()))
        if len(lines) >= _ROWS:
            yield _made(columns, self._rows.pop(columns))


class _Printed:
    """What the script printed: only an exception in it is of interest."""

    def __init__(self) -> None:
        self._text = ""
        self._frames: list[str] | None = None
        self._line = 0

    def add(self, number: int, text: str) -> Iterator[Fact]:
        *whole, self._text = (self._text + text).replace("\r", "\n").split("\n")
        self._text = self._text[-_LONGEST_LINE:]
        for line in whole:
            yield from self._look(number, line[:_LONGEST_LINE])

    def rest(self) -> Iterator[Fact]:
        yield from self._look(self._line, self._text)

    def _look(self, number: int, line: str) -> Iterator[Fact]:
        if line.startswith("Traceback (most recent call last)"):
            self._frames, self._line = [], number
        elif self._frames is not None:
            frame = _FRAME.search(line)
            raised = _RAISED.match(line)
            if frame and len(self._frames) < _MOST_LINES:
                self._frames.append(clean(f"{frame[1]}:{frame[2]}" + (f" in {frame[3]}" if frame[3] else "")))
            elif raised and not line.startswith(" "):
                said = {"type": clean(raised[1]), "message": clean(raised[2]), "frames": self._frames}
                self._frames = None
                yield Fact("exception", self._line, said)


# -- records


def _last(record: bytes, wanted: int, otherwise: int | bytes) -> int | bytes:
    """The value of a field; where it is set twice, the later one, as protobuf has it."""
    found = otherwise
    for field, held in wire.fields(record):
        if field == wanted:
            found = held
    return found


def _number(held: int | bytes) -> int:
    return held if isinstance(held, int) else 0


def _item(record: bytes) -> tuple[str, Any]:
    """Name and value of one entry of a history, a configuration or a look at the machine."""
    key, nested = "", []
    value: Any = None
    for field, held in wire.fields(record):
        if field == _KEY:
            key = wire.text(held)
        elif field == _NESTED:
            nested.append(wire.text(held))
        elif field == _BOOLEAN and isinstance(held, int):
            value = bool(held)
        elif field == _INTEGER and isinstance(held, int):
            value = wire.zigzag(held)
        elif field == _NUMBER and isinstance(held, bytes) and len(held) == 8:
            value = wire.double(held)
        elif field in _JSON and isinstance(held, bytes):
            value = _parsed(held)
    return clean(key or ".".join(nested[:_MOST_DEEP]), limit=200), value


def _parsed(text: bytes) -> Any:
    """A value as wandb writes it; numbers that JSON lacks stand there as they are, or in quotes."""
    if len(text) > _LONGEST_JSON:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _numbers(name: str, value: Any, row: dict[str, float], depth: int = 0) -> None:
    """The numbers in a value, under names with dots between; a histogram or an image is none."""
    if isinstance(value, str):
        value = _WORDS.get(value)
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        if value.bit_length() < 1000:
            row[name] = float(value)
    elif isinstance(value, float):
        row[name] = value
    elif isinstance(value, dict) and "_type" not in value and depth < _MOST_DEEP:
        for key, held in value.items():
            if len(row) < _MOST_NAMES:
                _numbers(f"{name}.{clean(key, limit=200)}", held, row, depth + 1)


def _setting(number: int, record: bytes) -> Iterator[Fact]:
    stated: dict[str, Any] = {}
    for field, held in wire.fields(record):
        if field == 1 and isinstance(held, bytes):
            name, value = _item(held)
            stated[name] = value
    stated.pop("_wandb", None)
    if stated:
        yield Fact("setting", number, {"values": settings.flat(stated)})


def _run(number: int, record: bytes) -> Iterator[Fact]:
    """The run itself: what it is called, and the configuration that it began with."""
    said = {1: "id", 3: "project", 6: "group", 8: "name", 12: "sweep", 13: "host"}
    stated: dict[str, Any] = {}
    for field, held in wire.fields(record):
        if field == 4 and isinstance(held, bytes):
            yield from _setting(number, held)
        elif field in said and isinstance(held, bytes):
            stated[f"wandb.{said[field]}"] = clean(wire.text(held))
        elif field == 14 and isinstance(held, int):
            stated["wandb.starting_step"] = wire.signed(held)
        elif field == 18 and isinstance(held, int):
            stated["wandb.resumed"] = bool(held)
    if stated:
        yield Fact("setting", number, {"values": stated})


def _made(columns: tuple[str, ...], rows: tuple[list[int], list[list[float]]]) -> Block:
    lines, values = rows
    return block(lines, {name: [row[place] for row in values] for place, name in enumerate(columns)})


READER = Wandb()
