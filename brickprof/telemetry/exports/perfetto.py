"""A run as a trace in Chrome's JSON: for ui.perfetto.dev, chrome://tracing and whatever else reads these.

Enters: a run. Leaves: one file (packed where its name ends in .gz). A process for each rank, with its coordinates;
threads for steps, the host's bricks as they nest, transfers, collectives, and each stream of the device; counters; what
went wrong, and what the diagnosis found, as instants; arrows from what launched something to where the device did it.

The file is written as the run is read, in the order of time, so that memory does not grow with what is written. Times
are microseconds since ``baseTimeNanoseconds``, with the clocks of ranks on other hosts laid on the first one's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from brickprof.bricks import Kind, title
from brickprof.errors import NothingToJudge
from brickprof.telemetry import clocks, findings, lanes
from brickprof.telemetry.curves import told
from brickprof.telemetry.exports import times_needed
from brickprof.telemetry.files import whole_text
from brickprof.telemetry.marks import attributes, mark
from brickprof.text import clean

if TYPE_CHECKING:
    from brickprof.records import Span
    from brickprof.run import Run
    from brickprof.run.parts import Part

NAME, SUFFIX = "perfetto", ".perfetto.json"
TITLE = "a timeline for ui.perfetto.dev and chrome://tracing (.json, or .json.gz)"

FINDINGS, STEPS, COLLECTIVES, EVENTS = "findings", "steps", "collectives", "events"
_ORDER = (FINDINGS, EVENTS, STEPS, lanes.HOST, lanes.TRANSFERS, COLLECTIVES)
_WORTH_AN_INSTANT = frozenset({
    "note", "checkpoint", "restored", "resumed", "race", "fallback", "unsteady", "probe_off", "dropped", "mode", "exit",
})  # fmt: skip
_LAUNCH = 200_000
"""The number of the process that stands for the launch; a rank's is one more than the rank: 0 is the idle task's."""
_THREADS = 10_000
"""Numbers of threads that a process has for itself. Perfetto orders threads by them, Chrome by what is said."""
_MOST_IDS = 1 << 40
# Perfetto shows the escapes of JSON as they stand, so what is not ASCII is written as itself.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


class Mark(NamedTuple):
    """One event of the trace, before it has a thread and a time of its own."""

    time_ns: int
    rank: int
    lane: str
    fields: dict[str, Any]
    lasted: int | None = None


def write(run: Run, out: Path) -> Path:
    times_needed(run, "Perfetto")
    marks = _in_order(run)
    first = next(marks, None)
    if first is None:
        raise NothingToJudge("This run holds no spans and no events, so there is nothing to draw.")
    with whole_text(out) as stream:
        _Trace(stream, run, first.time_ns).write(chain([first], marks))
    return out


def _in_order(run: Run) -> Iterator[Mark]:
    moved = clocks.offsets(run)
    streams = [
        _moved(stream, moved.get(part.rank, 0))
        for part in run.parts
        for stream in (
            _host(part, run.qualified), _device(part, run.qualified), _collectives(part), _counters(part),
            _instants(part),
        )
    ]  # fmt: skip
    return merge(*streams, _findings(run), key=lambda found: found.time_ns)


def _moved(stream: Iterator[Mark], by: int) -> Iterator[Mark]:
    return (found._replace(time_ns=found.time_ns + by) for found in stream) if by else stream


# -- slices


def _host(part: Part, qualified: bool) -> Iterator[Mark]:
    steps = lanes.Nest()
    for lane, start, end, span in lanes.on_host(part, launches=True):
        if span.phase == "step":
            number, until = steps.place(start, end)
            name = {"ph": "X", "name": f"ProfilerStep#{span.step}", "cat": "user_annotation"}
            yield Mark(start, part.rank, STEPS if not number else f"{STEPS} ({number + 1})", name, until - start)
        if not lanes.is_launch(span):
            fields = {
                "ph": "X",
                "name": title(span.brick, span.phase, qualified=qualified),
                "cat": str(span.brick.kind),
            }
            yield Mark(start, part.rank, lane, {**fields, "args": _said(span)}, end - start)
        elif lane.startswith(lanes.TRANSFERS):
            lane = lanes.HOST  # the arrow comes from the brick that asked for the copy
        if _points(span):
            yield Mark(start, part.rank, lane, {"ph": "s", **_arrow(part, span)})


def _device(part: Part, qualified: bool) -> Iterator[Mark]:
    for lane, start, end, span in lanes.on_device(part):
        fields = {"ph": "X", "name": title(span.brick, span.phase, qualified=qualified), "cat": _category(span)}
        said = {"device": span.coordinates.local_rank, "stream": span.stream, **_said(span)}
        yield Mark(start, part.rank, lane, {**fields, "args": said}, end - start)
        if _points(span):
            yield Mark(start, part.rank, lane, {"ph": "f", "bp": "e", **_arrow(part, span)})


def _category(span: Span) -> str:
    """As torch's own profiler calls it."""
    return {Kind.KERNEL: "kernel", Kind.TRANSFER: "gpu_memcpy"}.get(span.brick.kind, "gpu_user_annotation")


def _points(span: Span) -> bool:
    """Whether an arrow leads from the host to the device: for all but whole steps, which nobody launches."""
    start = lanes.started(span)
    return start is not None and start >= span.start_ns and span.phase != "step"


def _arrow(part: Part, span: Span) -> dict[str, Any]:
    return {"name": "launch", "cat": "launch", "id": (part.rank + 1) * _MOST_IDS + span.id % _MOST_IDS}


def _said(span: Span) -> dict[str, Any]:
    said: dict[str, Any] = {"step": span.step, "phase": span.phase}
    if span.coordinates.microbatch:
        said["microbatch"] = span.coordinates.microbatch
    if span.device_ns is not None:
        said["device_us"] = span.device_ns / 1000
    told_more = attributes({name: value for name, value in span.attributes.items() if name != lanes.STARTED}, "")
    return {**_finite(told_more), **said}


def _collectives(part: Part) -> Iterator[Mark]:
    """Each collective while the host was in it; of one that was left to itself, from its start to its wait."""
    found = []
    for event in part.events:
        fields = event.fields
        took = fields.get("ns")
        if event.kind == "collective" and isinstance(took, int) and took >= 0 and fields.get("phase") != "open":
            found.append((event.time_ns - took, event.time_ns, event))
    nest = lanes.Nest()
    for start, end, event in sorted(found, key=lambda each: (each[0], -each[1])):
        number, until = nest.place(start, end)
        lane = f"{COLLECTIVES} ({number + 1})" if number else COLLECTIVES
        said = {"step": event.step, **_finite(attributes(event.fields, ""))}
        name = {"ph": "X", "name": clean(event.fields.get("op", "collective")), "cat": "collective", "args": said}
        yield Mark(start, part.rank, lane, name, until - start)


# -- counters and instants


def _counters(part: Part) -> Iterator[Mark]:
    """Every number of the run; one that is not finite is an instant, once, until it is finite again."""
    broken: set[str] = set()
    for name, _, time_ns, value in told(part):
        if math.isfinite(value):
            broken.discard(name)
            yield Mark(time_ns, part.rank, EVENTS, {"ph": "C", "name": name, "args": {"value": value}})
        elif name not in broken:
            broken.add(name)
            yield Mark(time_ns, part.rank, EVENTS, {"ph": "i", "s": "t", "name": f"{name} is {value:g}"})


def _instants(part: Part) -> Iterator[Mark]:
    for event in sorted(part.events, key=lambda each: each.moment):
        trouble = mark(event)
        if trouble is None and event.kind not in _WORTH_AN_INSTANT:
            continue
        what = trouble.error_type or trouble.message if trouble is not None else ""
        said = {"step": event.step, **_finite(attributes(event.fields, ""))}
        name = clean(f"{event.kind}: {what}" if what else event.kind)
        fields = {"ph": "i", "s": "t", "name": name, "cat": event.kind, "args": said}
        yield Mark(event.time_ns, part.rank, EVENTS, fields)


def _findings(run: Run) -> Iterator[Mark]:
    """What the diagnosis found, at the step where it began."""
    rank = min((part.rank for part in run.parts if part.rank >= 0), default=-1)
    for at, finding in findings.placed(run):
        name = clean(f"{finding.id} {finding.root_cause or finding.contract}: {finding.symptom}", limit=160)
        said = _finite(attributes(findings.told(finding), ""))
        yield Mark(at, rank, FINDINGS, {"ph": "i", "s": "t", "name": name, "cat": "finding", "args": said})


def _finite(said: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no word for what is not finite."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in said.items()
    }


# -- the file


class _Trace:
    def __init__(self, stream: TextIO, run: Run, base: int) -> None:
        self._stream = stream
        self._run = run
        self._base = base
        self._threads: dict[tuple[int, str], int] = {}
        self._processes: set[int] = set()
        self._places = {part.rank: part for part in run.parts}
        self._between = "\n"

    def write(self, marks: Iterator[Mark]) -> None:
        self._stream.write(f'{_encode(self._head())[:-1]},"traceEvents":[')
        for found in marks:
            self._mark(found)
        self._stream.write("\n]}\n")

    def _head(self) -> dict[str, Any]:
        meta = self._run.meta
        said = {"run": meta.run_id, "script": meta.script, "host": meta.host, "version": meta.version}
        ranks = [part.rank for part in self._run.parts if part.rank >= 0]
        alone = {"distributedInfo": {"rank": ranks[0], "world_size": 1}} if len(ranks) == 1 else {}
        return {
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self._base,
            "otherData": {"exporter": "brickprof", **{name: clean(value) for name, value in said.items() if value}},
            **alone,
        }

    def _mark(self, found: Mark) -> None:
        process = _LAUNCH if found.rank < 0 else found.rank + 1
        if process not in self._processes:
            self._introduce(process, found.rank)
        thread = self._threads.get((process, found.lane))
        if thread is None:
            thread = self._thread(process, found.lane)
        fields = {**found.fields, "pid": process, "tid": thread, "ts": (found.time_ns - self._base) / 1000}
        if found.lasted is not None:
            fields["dur"] = found.lasted / 1000
        self._put(fields)

    def _introduce(self, process: int, rank: int) -> None:
        self._processes.add(process)
        name, labels = "launch", ""
        if rank >= 0:
            part = self._places[rank]
            where = part.coordinates
            name = f"rank {rank} (node {where.node} local {where.local_rank} dp {where.dp} tp {where.tp} pp {where.pp})"
            labels = next((str(each.fields.get("host", "")) for each in part.events if each.kind == "run"), "")
        self._describe(process, 0, "process_name", name=name)
        self._describe(process, 0, "process_sort_index", sort_index=rank)
        if labels:
            self._describe(process, 0, "process_labels", labels=clean(labels))

    def _thread(self, process: int, lane: str) -> int:
        """A thread of its own for each lane, in the order in which lanes are shown; no two processes share a number."""
        first = lane.partition(" (")[0]
        place = 100 * (1 + (_ORDER.index(first) if first in _ORDER else len(_ORDER)))
        while process * _THREADS + place in self._threads.values():
            place += 1
        thread = self._threads[process, lane] = process * _THREADS + place
        self._describe(process, thread, "thread_name", name=lane)
        self._describe(process, thread, "thread_sort_index", sort_index=place)
        return thread

    def _describe(self, process: int, thread: int, what: str, **args: Any) -> None:
        self._put({"ph": "M", "name": what, "pid": process, "tid": thread, "args": args})

    def _put(self, fields: dict[str, Any]) -> None:
        self._stream.write(f"{self._between}{_encode(fields)}")
        self._between = ",\n"
