"""TensorBoard event files: ``events.out.tfevents.*``.

Enters: one file. Leaves: every point of every scalar, whether it was written as a number or as a tensor; of histograms
what they say about a tensor (its range, and when it stopped being finite); hyper-parameters and configurations as
settings. The logs of several files of one run become one (``joined``).

The messages are read with the ``tensorboard`` package, which is optional (``brickprof[logs]``); of it only the
descriptions of its messages are imported. The frames around them are read here: the package's own reader imports all of
TensorFlow where that is installed, takes no packed files, and stops at the first damaged record.

A folder is a run. A sub-folder of it (``train``, ``validation``, what ``add_scalars`` makes) is a part of that run, and
its name stands before its tags; one that has a number for a name holds hyper-parameters.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import frames, settings
from brickprof.logs.reading.gather import Gathering, Log
from brickprof.logs.reading.model import Block, Fact, Floats, Head, Item, block
from brickprof.logs.reading.source import Source
from brickprof.text import clean

STEP, TIME = "step", "wall_time"
_FILE = "tfevents"
_PARTS = frozenset({"train", "training", "val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_WRITTEN = re.compile(r"tfevents\.(\d+)")
_FLUSHED = 8192
_MOST_TAGS = 4_000
_MOST_TEXTS = 200
_SETTINGS = frozenset({"args", "hparams", "hyperparameters", "hyperparams", "config", "text"})
_NUMBERS = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 14: "bfloat16", 17: "<u2", 19: "<f2",
    22: "<u4", 23: "<u8",
}  # fmt: skip
"""TensorFlow's numbers for its types, as NumPy calls them."""


class TensorBoard:
    name = "tensorboard"
    title = "TensorBoard event files"

    def sniff(self, head: Head) -> float:
        named = _FILE in head.name
        if len(head.start) < 12:
            return 0.6 if named else 0.0
        framed = frames.masked_crc32c(head.start[:8]) == int.from_bytes(head.start[8:12], "little")
        versioned = b"brain.Event:" in head.start[:64]
        if framed and (named or versioned):
            return 1.0
        return 0.6 if named or versioned else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        reading = _Reading("" if source.is_pipe else home(source.path)[1])
        with source.open() as stream:
            for number, (_, record) in enumerate(frames.tensorflow(stream, source.damage), 1):
                yield from reading.record(number, record, source.damage)
        yield from reading.rest()

    def joined(self, logs: Sequence[Log]) -> list[Log]:
        """The files of one run as one log: parts side by side, restarts one behind the other.

        Files that tell of the same tags at the same time have different writers: those are ranks, and stay apart.
        """
        tracks: list[list[Log]] = []
        for log in sorted(logs, key=lambda log: _begun(log.path)):
            track = next((track for track in tracks if not any(_at_once(log, other) for other in track)), None)
            if track is None:
                tracks.append([log])
            else:
                track.append(log)
        return [_one_log(track) if len(track) > 1 else track[0] for track in tracks]


def home(path: str) -> tuple[str, str]:
    """The folder of the run that an event file is of, and what stands before its tags."""
    folder, name = Path(path).parent, Path(path).parent.name
    if name.lower() in _PARTS:
        return str(folder.parent), f"{clean(name, limit=200)}/"
    if not name or not _holds_events(folder.parent):
        return str(folder), ""
    return str(folder.parent), "" if name.replace(".", "", 1).isdigit() else f"{clean(name, limit=200)}/"


def _holds_events(folder: Path) -> bool:
    try:
        return _listed(str(folder), folder.stat().st_mtime_ns)
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=1024)
def _listed(folder: str, changed: int) -> bool:
    """Thousands of runs may lie in one folder: it is looked through once, until it changes."""
    with os.scandir(folder) as entries:
        return any(_FILE in entry.name and entry.is_file() for entry in entries)


def _begun(path: str) -> tuple[int, str]:
    found = _WRITTEN.search(Path(path).name)
    return (int(found[1][:18]) if found else 0), path


def _at_once(one: Log, other: Log) -> bool:
    """Whether two files tell of the same tags in the same time."""
    if not one.series.keys() & other.series.keys():
        return False
    first, second = _times(one), _times(other)
    return first is not None and second is not None and max(first[0], second[0]) < min(first[1], second[1])


def _times(log: Log) -> tuple[float, float] | None:
    return next(((fact.fields["first"], fact.fields["last"]) for fact in log.facts if fact.kind == "written"), None)


def _one_log(logs: Sequence[Log]) -> Log:
    gathering = Gathering(logs[0].path, TensorBoard.name)
    counts: dict[str, int] = {}
    lines = 0
    for log in logs:
        for name, series in log.series.items():
            gathering.block(block(series.lines + lines, {STEP: series.steps, series.name: series.values}))
            counts[name] = counts.get(name, 0) + series.count
        gathering.take(replace(fact, line=fact.line + lines) for fact in log.facts)
        lines += max((int(series.lines[-1]) for series in log.series.values() if len(series)), default=0)
    whole = gathering.log()
    series_ = {name: replace(series, count=counts.get(name, series.count)) for name, series in whole.series.items()}
    damage = [f"{clean(Path(log.path).name)}: {text}" for log in logs for text in log.damage]
    return replace(whole, series=series_, rows=sum(log.rows for log in logs), damage=damage)


@dataclass(slots=True)
class _Points:
    """What was read of one tag and not handed on yet."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def block(self, tag: str) -> Block:
        tag = f"{tag}_" if tag in (STEP, TIME) else tag
        made = block(self.lines, {STEP: self.steps, TIME: self.times, tag: self.values})
        self.steps, self.values, self.times, self.lines = [], [], [], []
        return made


@dataclass(slots=True)
class _Histogram:
    points: int = 0
    first: int = 0
    last: int = 0
    lowest: float = math.inf
    highest: float = -math.inf
    count: float = 0.0
    broken: int | None = None
    """The first step at which it was not finite."""

    def add(self, step: int, low: float, high: float, count: float, finite: bool) -> None:
        self.first = self.first if self.points else step
        self.points += 1
        self.last, self.count = step, count
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)
        if not finite and self.broken is None:
            self.broken = step


class _Reading:
    def __init__(self, prefix: str) -> None:
        self._event, self._hparams = _messages()
        self._prefix = prefix
        self._points: dict[str, _Points] = {}
        self._histograms: dict[str, _Histogram] = {}
        self._plugins: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._texts = 0
        self._first, self._last = math.inf, -math.inf

    def record(self, line: int, record: bytes, damage: list[str]) -> Iterator[Item]:
        try:
            event = self._event.FromString(record)
        except Exception:  # protobuf's DecodeError, whichever implementation is installed
            frames.say(damage, f"record {line} is no event")
            return
        for value in event.summary.value:
            yield from self._value(line, event, value)

    def _value(self, line: int, event: Any, value: Any) -> Iterator[Item]:
        tag = self._tag(value.tag or value.node_name)
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield from self._point(tag, line, event, value.simple_value)
        elif kind == "histo":
            self._histogram(tag, event.step, _of_proto(value.histo))
        elif value.metadata.plugin_data.plugin_name == "hparams":
            yield from self._setting(line, self._hyperparameters(value.metadata.plugin_data.content))
        elif kind == "tensor":
            yield from self._tensor(tag, line, event, value)

    def _tag(self, written: str) -> str:
        tag = self._tags.get(written)
        if tag is None:
            tag = self._prefix + clean(written, limit=200)
            if len(self._tags) < _MOST_TAGS:
                self._tags[written] = tag
        return tag

    def _tensor(self, tag: str, line: int, event: Any, value: Any) -> Iterator[Item]:
        plugin = value.metadata.plugin_data.plugin_name or self._plugins.get(tag, "")
        if len(self._plugins) < _MOST_TAGS:
            self._plugins[tag] = plugin
        if value.tensor.string_val:
            yield from self._text(tag, line, value.tensor.string_val)
        elif plugin in ("", "scalars", "histograms"):
            numbers = _numbers(value.tensor)
            if numbers is None or not len(numbers):
                return
            if plugin == "histograms":
                self._histogram(tag, event.step, _of_rows(numbers))
            elif len(numbers) == 1:
                yield from self._point(tag, line, event, float(numbers[0]))

    def _point(self, tag: str, line: int, event: Any, value: float) -> Iterator[Block]:
        points = self._points.get(tag)
        if points is None:
            if len(self._points) >= _MOST_TAGS:
                return
            points = self._points[tag] = _Points()
        self._first, self._last = min(self._first, event.wall_time), max(self._last, event.wall_time)
        points.steps.append(event.step)
        points.values.append(value)
        points.times.append(event.wall_time)
        points.lines.append(line)
        if len(points.steps) >= _FLUSHED:
            yield points.block(tag)

    def rest(self) -> Iterator[Item]:
        for tag, points in self._points.items():
            if points.steps:
                yield points.block(tag)
        yield from self._histogram_facts()
        if self._first <= self._last:
            yield Fact("written", 1, {"first": self._first, "last": self._last})

    def _histogram(self, tag: str, step: int, said: tuple[float, float, float, bool] | None) -> None:
        if said is not None and (tag in self._histograms or len(self._histograms) < _MOST_TAGS):
            self._histograms.setdefault(tag, _Histogram()).add(step, *said)

    def _histogram_facts(self) -> Iterator[Fact]:
        for tag, seen in self._histograms.items():
            fields = {
                "tag": tag, "points": seen.points, "first_step": seen.first, "last_step": seen.last,
                "count": seen.count, "min": seen.lowest, "max": seen.highest, "nonfinite_step": seen.broken,
            }  # fmt: skip
            yield Fact("histogram", 0, fields)

    # -- settings

    def _text(self, tag: str, line: int, texts: Sequence[bytes]) -> Iterator[Fact]:
        self._texts += 1
        if self._texts > _MOST_TEXTS:
            return
        whole = "\n".join(text.decode("utf-8", "replace") for text in texts[:100])
        name = tag.removesuffix("/text_summary")
        found = settings.of_text(whole, "" if name.lower() in _SETTINGS else f"{name}.")
        yield from self._setting(line, found or {name: clean(whole)})

    def _setting(self, line: int, values: dict[str, Any]) -> Iterator[Fact]:
        if values:
            yield Fact("setting", line, {"values": values})

    def _hyperparameters(self, content: bytes) -> dict[str, Any]:
        try:
            stated = self._hparams.FromString(content).session_start_info.hparams
        except Exception:  # as above: bytes that are no message
            return {}
        return settings.flat({key: _plain(value) for key, value in stated.items()})


def _messages() -> tuple[Any, Any]:
    """The descriptions of events and of hyper-parameters."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    except ImportError:
        raise UnreadableInput(
            "TensorBoard event files are read with the tensorboard package, which is not installed.",
            "Install it: pip install 'brickprof[logs]'.",
        ) from None
    return Event, HParamsPluginData


def _plain(value: Any) -> Any:
    """What a ``google.protobuf.Value`` holds."""
    kind = value.WhichOneof("kind")
    return getattr(value, kind) if kind in ("number_value", "string_value", "bool_value") else None


def _numbers(tensor: Any) -> Floats | None:
    """The elements of a tensor, flat; None where they are no numbers."""
    kind = _NUMBERS.get(tensor.dtype)
    if kind is None:
        return None
    if content := tensor.tensor_content:
        if kind == "bfloat16":
            return _of_bfloat16(np.frombuffer(content[: len(content) // 2 * 2], dtype="<u2"))
        size = np.dtype(kind).itemsize
        return np.frombuffer(content[: len(content) // size * size], dtype=kind).astype(np.float64)
    if tensor.half_val:
        bits = np.asarray(tensor.half_val, dtype=np.int64).astype(np.uint16)
        return _of_bfloat16(bits) if kind == "bfloat16" else bits.view(np.float16).astype(np.float64)
    for name in ("float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val", "uint64_val"):
        if values := getattr(tensor, name):
            return np.asarray(values, dtype=np.float64)
    return None


def _of_bfloat16(bits: Any) -> Floats:
    floats: Floats = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return floats


def _of_proto(histogram: Any) -> tuple[float, float, float, bool] | None:
    """Lowest, highest, how many, and whether all are finite."""
    if not histogram.num:
        return None
    finite = all(math.isfinite(value) for value in (histogram.min, histogram.max, histogram.sum, histogram.num))
    return histogram.min, histogram.max, histogram.num, finite


def _of_rows(numbers: Floats) -> tuple[float, float, float, bool] | None:
    """The same of rows of left edge, right edge and count."""
    rows = numbers[: len(numbers) // 3 * 3].reshape(-1, 3)
    rows = rows[rows[:, 2] != 0]
    if not len(rows):
        return None
    return float(rows[:, 0].min()), float(rows[:, 1].max()), float(rows[:, 2].sum()), bool(np.isfinite(rows).all())


READER = TensorBoard()
