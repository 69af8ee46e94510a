"""OpenTelemetry's JSON: a line is one export of traces, metrics or logs, as brickprof and the collector write it.

Enters: such lines. Leaves: the points of every metric as a series; of spans that name their step, how long they took
and what numbers they carry; exceptions; and, of all spans together, those that cost most. In a trace of brickprof the
bricks and the steps are known for what they are.

A metric's attributes tell its series apart; one that names the step is the step. Numbers of 64 bits stand in quotes,
and so do NaN and Infinity: that is how OTLP writes JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from brickprof.logs.reading import names
from brickprof.logs.reading.model import Block, Fact, Head, Item, Skipped, block
from brickprof.logs.reading.source import Source
from brickprof.text import clean

_KEYS = ("resourceSpans", "resourceMetrics", "resourceLogs")
_ROWS = 4096
_MOST_SERIES = 4_000
_MOST_SPANS = 20_000
_TOP = 40
_DEEPEST = 8
_OURS = "brickprof."
_STEP = "brickprof.step"
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Otlp:
    name = "otlp"
    title = "OpenTelemetry JSON lines (OTLP)"

    def sniff(self, head: Head) -> float:
        start = head.start.lstrip()[:4096]
        if not start.startswith(b"{"):
            return 0.0
        begins = any(start[1:80].lstrip().startswith(f'"{key}"'.encode()) for key in _KEYS)
        inside = any(word in start for word in (b'"scopeSpans"', b'"scopeMetrics"', b'"scopeLogs"'))
        return 0.97 if begins else 0.9 if inside and any(key.encode() in start for key in _KEYS) else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        reading = _Reading()
        for number, line in _objects(source):
            try:
                export = json.loads(line)
            except (ValueError, RecursionError):
                yield Skipped(1, ((number, clean(line[:400].decode("utf-8", "replace"), limit=120)),))
                continue
            if isinstance(export, dict):
                yield from reading.export(number, export)
        yield from reading.rest()


def _objects(source: Source) -> Iterator[tuple[int, bytes]]:
    """Line by line; a file that is one object over many lines is one."""
    held: list[bytes] = []
    size = first = 0
    for number, line in source.lines():
        if line.startswith(b'{"') and not held:
            yield number, line
        elif line.strip() or held:
            first = first if held else number
            held.append(line)
            size += len(line)
            if size > 64 << 20:
                raise ValueError("one export is longer than 64 MiB")
            if line.rstrip() == b"}":
                yield first, b"\n".join(held)
                held, size = [], 0
    if held:
        yield first, b"\n".join(held)


@dataclass(slots=True)
class _Kind:
    """Spans of one name."""

    granularity: str
    count: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0


class _Reading:
    def __init__(self) -> None:
        self._rows: dict[tuple[tuple[str, ...], int | None], tuple[list[int], list[list[float]]]] = {}
        self._series: set[str] = set()
        self._kinds: dict[str, _Kind] = {}
        self._stated: set[str] = set()
        self._first, self._last = 1 << 63, 0

    def export(self, line: int, export: Mapping[str, Any]) -> Iterator[Item]:
        for resource in _list(export.get("resourceSpans")):
            yield from self._resource(line, resource)
            for span in _below(resource, "scopeSpans", "spans"):
                yield from self._span(line, span)
        for resource in _list(export.get("resourceMetrics")):
            yield from self._resource(line, resource)
            for metric in _below(resource, "scopeMetrics", "metrics"):
                yield from self._metric(line, metric)
        for resource in _list(export.get("resourceLogs")):
            for record in _below(resource, "scopeLogs", "logRecords"):
                yield from _thrown(line, _attributes(record), None)

    def rest(self) -> Iterator[Item]:
        for (columns, rank), rows in self._rows.items():
            if rows[0]:
                yield _made(columns, rank, rows)
        if self._kinds:
            yield Fact("spans", 1, {"seconds": (self._last - self._first) / 1e9, "top": self._top()})

    def _top(self) -> list[dict[str, Any]]:
        most = sorted(self._kinds.items(), key=lambda item: (-item[1].seconds, item[0]))[:_TOP]
        return [
            {
                "name": name, "granularity": kind.granularity, "count": kind.count, "seconds": kind.seconds,
                "device_seconds": kind.device_seconds or None,
            }
            for name, kind in most
        ]  # fmt: skip

    def _resource(self, line: int, resource: Mapping[str, Any]) -> Iterator[Fact]:
        said = _attributes(resource.get("resource"))
        text = repr(sorted(said.items(), key=lambda item: item[0]))
        if said and text not in self._stated and len(self._stated) < 1_000:
            self._stated.add(text)
            yield Fact("setting", line, {"values": said})

    # -- spans

    def _span(self, line: int, span: Mapping[str, Any]) -> Iterator[Item]:
        begin, end = _whole(span.get("startTimeUnixNano")), _whole(span.get("endTimeUnixNano"))
        said = _attributes(span)
        name = clean(said.get("brickprof.brick.name") or span.get("name", "?"), limit=200)
        rank = _rank(said)
        for event in _list(span.get("events")):
            yield from _thrown(line, _attributes(event), rank)
        if not 0 < begin <= end:
            return
        self._first, self._last = min(self._first, begin), max(self._last, end)
        seconds = (end - begin) / 1e9
        device = _float(said.get("brickprof.device_us"))
        self._count(name, str(said.get("brickprof.brick.granularity", "")), seconds, (device or 0.0) / 1e6)
        ours = any(key.startswith(_OURS) for key in said)
        if ours and said.get("brickprof.phase") == "step":
            row = {"step": _float(said.get(_STEP)), "step_seconds": seconds}
            row |= {} if device is None else {"device_seconds": device / 1e6}
        elif ours:
            return
        else:
            row = _numbers(said)
            step = next((key for key in row if names.role(key) == "step"), None)
            if step is None:
                return
            row[f"{name} seconds"] = seconds
        yield from self._row(line, rank, row)

    def _count(self, name: str, granularity: str, seconds: float, device: float) -> None:
        kind = self._kinds.get(name)
        if kind is None:
            name = name if len(self._kinds) < _MOST_SPANS else "(others)"
            kind = self._kinds.setdefault(name, _Kind(clean(granularity, limit=40)))
        kind.count += 1
        kind.seconds += seconds
        kind.device_seconds += device

    # -- metrics

    def _metric(self, line: int, metric: Mapping[str, Any]) -> Iterator[Item]:
        name = clean(metric.get("name", "?"), limit=200)
        for kind in ("gauge", "sum", "histogram", "exponentialHistogram", "summary"):
            held = metric.get(kind)
            for point in _list(held.get("dataPoints")) if isinstance(held, dict) else []:
                said = _attributes(point)
                stepped = {key: value for key, value in _numbers(said).items() if names.role(key) == "step"}
                others = ",".join(f"{key}={value}" for key, value in said.items() if key not in stepped)
                shown = clean(f"{name}{{{others}}}", limit=300) if others else name
                row = _point(shown, point)
                if row:
                    yield from self._row(line, _rank(said), {**dict(list(stepped.items())[:1]), **row})

    def _row(self, line: int, rank: int | None, row: Mapping[str, float | None]) -> Iterator[Block]:
        known = {name: value for name, value in row.items() if value is not None}
        if not self._known(known):
            return
        key = tuple(known), rank
        lines, values = self._rows.setdefault(key, ([], []))
        lines.append(line)
        values.append(list(known.values()))
        if len(lines) >= _ROWS:
            yield _made(*key, self._rows.pop(key))

    def _known(self, row: Mapping[str, float]) -> bool:
        if len(self._series) < _MOST_SERIES:
            self._series.update(row)
        return bool(row) and self._series >= row.keys()


def _made(columns: tuple[str, ...], rank: int | None, rows: tuple[list[int], list[list[float]]]) -> Block:
    lines, values = rows
    return block(lines, {name: [row[place] for row in values] for place, name in enumerate(columns)}, rank=rank)


def _point(name: str, point: Mapping[str, Any]) -> dict[str, float | None]:
    """What one point of a metric says; a distribution is told by its mean and its range."""
    for key in ("asDouble", "asInt"):
        if key in point:
            return {name: _float(point[key])}
    count, total = _float(point.get("count")), _float(point.get("sum"))
    if not count or total is None:
        return {}
    found: dict[str, float | None] = {f"{name}/mean": total / count, f"{name}/count": count}
    return found | {f"{name}/{key}": _float(point[key]) for key in ("min", "max") if key in point}


def _thrown(line: int, said: Mapping[str, Any], rank: int | None) -> Iterator[Fact]:
    """An exception, where these attributes tell one."""
    if "exception.type" not in said and "exception.message" not in said:
        return
    stack = str(said.get("exception.stacktrace", "")).replace("⏎", "\n").splitlines()
    yield Fact(
        "exception", line,
        {
            "type": clean(said.get("exception.type", "Exception"), limit=200),
            "message": clean(said.get("exception.message", "")),
            "frames": [clean(frame, limit=200) for frame in stack[:50]],
        },
        rank,
    )  # fmt: skip


# -- OTLP's own JSON


def _list(said: Any) -> list[dict[str, Any]]:
    return [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []


def _below(resource: Mapping[str, Any], scopes: str, key: str) -> Iterator[dict[str, Any]]:
    for scope in _list(resource.get(scopes)):
        yield from _list(scope.get(key))


def _attributes(holder: Any) -> dict[str, Any]:
    if not isinstance(holder, dict):
        return {}
    said = _list(holder.get("attributes"))
    return {clean(one.get("key", ""), limit=200): _value(one.get("value"), 0) for one in said}


def _value(said: Any, depth: int) -> Any:
    if not isinstance(said, dict) or depth > _DEEPEST:
        return None
    if "stringValue" in said:
        return clean(said["stringValue"], limit=4000)
    if "boolValue" in said:
        return bool(said["boolValue"])
    if "intValue" in said:
        return _whole(said["intValue"], 0)
    if "doubleValue" in said:
        return _float(said["doubleValue"])
    held = said.get("arrayValue")
    if isinstance(held, dict):
        return clean([_value(one, depth + 1) for one in _list(held.get("values"))[:100]])
    return None


def _numbers(said: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        key: float(value)
        for key, value in said.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _rank(said: Mapping[str, Any]) -> int | None:
    rank = said.get("brickprof.rank", said.get("rank"))
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 20 else None


def _whole(said: Any, otherwise: int = -1) -> int:
    if isinstance(said, str) and len(said) < 21 and said.removeprefix("-").isdecimal():
        said = int(said)
    return said if isinstance(said, int) and abs(said) < 1 << 63 else otherwise


def _float(said: Any) -> float | None:
    if isinstance(said, str):
        return _WORDS[said] if said in _WORDS else float(_whole(said)) if said.removeprefix("-").isdecimal() else None
    if isinstance(said, int) and not isinstance(said, bool):
        return float(said) if said.bit_length() < 1000 else None
    return said if isinstance(said, float) else None


READER = Otlp()
