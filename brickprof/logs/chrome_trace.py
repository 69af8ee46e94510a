"""Traces of torch.profiler, and others in Chrome's format: ``.json``, packed or not.

Enters: a trace of any length; it is read event by event. Leaves: for every ``ProfilerStep#N`` how long it took, how
much of it the device was busy, what was launched, copied and waited for in it; and, of the whole trace, the kernels and
the operators that cost most.

A kernel counts to the step in whose time it runs. Several kernels that run side by side make a device busy once.
Communication is exposed while no other kernel runs.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brickprof.logs.reading.json_stream import JsonText
from brickprof.logs.reading.model import Block, Fact, Floats, Head, Item, block
from brickprof.logs.reading.source import Source
from brickprof.text import clean

MOST_KEPT = 4_000_000
"""Kernels, copies and launches of one trace: each takes up to 48 bytes until the end."""
_MOST_NAMES = 20_000
_MOST_DEVICES = 64
_TOP = 20
_MOST_WINDOWS = 200
_STEP = re.compile(r"ProfilerStep#?\s*(\d{1,15})")
_LAUNCH = re.compile(r"(cuda|hip|cu)(Launch|ExtLaunch|ModuleLaunch|GraphLaunch|ExtModuleLaunch)")
_SYNC = re.compile(r"(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize")
_COMMUNICATION = re.compile(r"nccl|rccl|mscclpp|oneccl", re.IGNORECASE)
_KERNEL, _COPY, _SET = "kernel", "gpu_memcpy", "gpu_memset"
_KINDS = {
    "kernel": _KERNEL, "Kernel": _KERNEL, "gpu_memcpy": _COPY, "Memcpy": _COPY, "gpu_memset": _SET, "Memset": _SET,
    "cuda_runtime": "runtime", "Runtime": "runtime", "cuda_driver": "runtime", "xpu_runtime": "runtime",
    "cpu_op": "operator", "Operator": "operator", "user_annotation": "annotation",
}  # fmt: skip
"""What Kineto calls an event, in all its versions."""
_DIRECTIONS = (("HtoD", "HtoD"), ("DtoH", "DtoH"), ("DtoD", "DtoD"), ("PtoP", "PtoP"), ("HtoH", "HtoH"))
_SECOND = 1e-6


class ChromeTrace:
    name = "chrome-trace"
    title = "torch.profiler Chrome traces"
    roles = {  # noqa: RUF012
        "step": "step", "step_seconds": "step_seconds", "device_busy_share": "other", "kernels": "other",
        "launches": "other", "copies": "other", "copied_bytes": "other", "sync_seconds": "other",
        "communication_seconds": "other", "exposed_communication_seconds": "other",
    }  # fmt: skip

    def sniff(self, head: Head) -> float:
        start = head.start.lstrip()[:65536]
        if start.startswith(b"{"):
            if b'"traceEvents"' in start:
                return 0.95
            return 0.7 if b'"schemaVersion"' in start and b'"deviceProperties"' in start else 0.0
        events = start.startswith(b"[") and all(word in start for word in (b'"ph"', b'"ts"', b'"pid"'))
        return 0.8 if events else 0.0

    def read(self, source: Source) -> Iterator[Item]:
        trace = _Trace()
        with source.open() as stream:
            text = JsonText(stream)
            try:
                _events(text, trace)
                text.end()
            except ValueError as error:
                source.damage.append(clean(error))
        if text.damaged:
            source.damage.append(f"{text.damaged} events could not be read")
        yield from trace.items()


def _events(text: JsonText, trace: _Trace) -> None:
    if text.peek() == "[":
        for event in text.elements():
            trace.event(event)
        return
    for name in text.members():
        if name == "traceEvents":
            for event in text.elements():
                trace.event(event)
        else:
            trace.header(name, text.value())


@dataclass(slots=True)
class _Sum:
    count: int = 0
    micros: float = 0.0
    bytes: int = 0

    def add(self, micros: float, size: int = 0) -> None:
        self.count += 1
        self.micros += micros
        self.bytes += size

    def said(self) -> dict[str, Any]:
        return {"count": self.count, "seconds": self.micros * _SECOND} | ({"bytes": self.bytes} if self.bytes else {})


@dataclass(slots=True)
class _Times:
    """Moments, and a number for each."""

    starts: array[float] = field(default_factory=lambda: array("d"))
    amounts: array[float] = field(default_factory=lambda: array("d"))

    def add(self, start: float, amount: float) -> None:
        self.starts.append(start)
        self.amounts.append(amount)

    def within(self, begins: Floats, ends: Floats) -> tuple[Floats, Floats]:
        """How many lie in each stretch, and the sum of their numbers."""
        starts, amounts = np.frombuffer(self.starts), np.frombuffer(self.amounts)
        order = np.argsort(starts, kind="stable")
        summed = np.concatenate([[0.0], np.cumsum(amounts[order])])
        first, last = np.searchsorted(starts[order], begins), np.searchsorted(starts[order], ends)
        return (last - first).astype(np.float64), summed[last] - summed[first]


class _Busy:
    """When a device does something."""

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")

    def add(self, start: float, end: float) -> None:
        self.starts.append(start)
        self.ends.append(end)

    def until(self, times: Floats) -> Floats:
        """For how long it was busy before each of these moments."""
        starts, ends = np.frombuffer(self.starts), np.frombuffer(self.ends)
        if not len(starts):
            return np.zeros(len(times))
        order = np.argsort(starts, kind="stable")
        starts, latest = starts[order], np.maximum.accumulate(ends[order])
        begins = np.concatenate([[True], starts[1:] > latest[:-1]])
        first = np.flatnonzero(begins)
        starts, ends = starts[first], latest[np.concatenate([first[1:] - 1, [len(latest) - 1]])]
        before = np.concatenate([[0.0], np.cumsum(ends - starts)])
        place = np.searchsorted(starts, times, side="right")
        past = np.where(place > 0, np.maximum(ends[np.maximum(place - 1, 0)] - times, 0.0), 0.0)
        found: Floats = before[place] - past
        return found


class _Trace:
    def __init__(self) -> None:
        self._count = 0
        self._skipped = 0
        self._rank: int | None = None
        self._said: dict[str, Any] = {}
        self._steps: dict[int, tuple[float, float, int]] = {}
        self._busy: dict[int, _Busy] = {}
        self._computing: dict[int, _Busy] = {}
        self._kept = 0
        self._kernels: dict[str, _Sum] = {}
        self._numbers: dict[str, int] = {}
        self._named = array("i")
        """The number of each kernel's name, in the order of their times."""
        self._operators: dict[str, _Sum] = {}
        self._copies: dict[str, _Sum] = {}
        self._syncs: dict[str, _Sum] = {}
        self._communication = _Sum()
        self._times = {name: _Times() for name in ("kernels", "launches", "copies", "syncs", "communication")}
        self._peaks: dict[str, int] = {}
        self._first, self._last = math.inf, -math.inf

    def header(self, name: str, value: Any) -> None:
        if name == "distributedInfo" and isinstance(value, dict):
            self._rank = _whole(value.get("rank"))
            self._said |= {"rank": self._rank, "world_size": _whole(value.get("world_size"))}
            self._said["backend"] = clean(value.get("backend", ""))
        elif name == "deviceProperties" and isinstance(value, list):
            names = [clean(one["name"]) for one in value[:_MOST_DEVICES] if isinstance(one, dict) and "name" in one]
            self._said["device_names"] = names

    def event(self, event: Any) -> None:
        self._count += 1
        if not isinstance(event, dict):
            self._skipped += 1
            return
        name = event.get("name")
        if name == "[memory]":
            self._memory(event.get("args"))
            return
        kind = _KINDS.get(event.get("cat", "")) if isinstance(event.get("cat"), str) else None
        start, lasted = _number(event.get("ts")), _number(event.get("dur"))
        if kind is None or start is None or lasted is None or lasted < 0 or not isinstance(name, str):
            return
        self._first, self._last = min(self._first, start), max(self._last, start + lasted)
        if kind in (_KERNEL, _COPY, _SET):
            self._device(kind, name, start, lasted, event)
        elif kind == "runtime":
            self._runtime(name, start, lasted)
        else:
            found = _STEP.match(name)
            if found:
                self._steps.setdefault(int(found[1]), (start, start + lasted, self._count))
            elif kind == "operator":
                _sum(self._operators, name).add(lasted)

    def _device(self, kind: str, name: str, start: float, lasted: float, event: dict[str, Any]) -> None:
        self._keep()
        said = event.get("args")
        args: dict[str, Any] = said if isinstance(said, dict) else {}
        device = _whole(args.get("device", event.get("pid"))) or 0
        if device not in self._busy and len(self._busy) >= _MOST_DEVICES:
            device = next(iter(self._busy))
        self._busy.setdefault(device, _Busy()).add(start, start + lasted)
        if kind == _COPY:
            size = _whole(args.get("bytes")) or 0
            _sum(self._copies, _direction(name)).add(lasted, size)
            self._times["copies"].add(start, size)
        elif kind == _KERNEL:
            _sum(self._kernels, name).add(lasted)
            self._times["kernels"].add(start, lasted)
            self._named.append(self._number_of(name))
        if kind == _KERNEL and _COMMUNICATION.search(name):
            self._communication.add(lasted)
            self._times["communication"].add(start, lasted)
        else:
            self._computing.setdefault(device, _Busy()).add(start, start + lasted)

    def _keep(self) -> None:
        self._kept += 1
        if self._kept > MOST_KEPT:
            raise ValueError(f"more than {MOST_KEPT:,} kernels, copies and launches: what follows them was left out")

    def _runtime(self, name: str, start: float, lasted: float) -> None:
        if _LAUNCH.match(name):
            self._keep()
            self._times["launches"].add(start, lasted)
        elif _SYNC.match(name):
            self._keep()
            _sum(self._syncs, name).add(lasted)
            self._times["syncs"].add(start, lasted)

    def _memory(self, args: Any) -> None:
        """What the allocator says: 1 is CUDA, 0 the host."""
        if not isinstance(args, dict) or args.get("Device Type") == 0:
            return
        for key, name in (("Total Allocated", "allocated"), ("Total Reserved", "reserved")):
            size = _whole(args.get(key))
            if size is not None:
                self._peaks[name] = max(self._peaks.get(name, 0), size)

    # -- what it comes to

    def items(self) -> Iterator[Item]:
        steps = sorted(self._steps.items(), key=lambda step: step[1][0])
        if steps:
            yield self._block(steps)
        if self._first < self._last:
            yield Fact("trace", 1, self._whole(steps), self._rank)
        yield from self._windows(steps[:_MOST_WINDOWS])
        if self._kernels:
            yield Fact("kernels", 1, {"top": _top(self._kernels)}, self._rank)
        if self._operators:  # one may hold others: these times do not add up
            top = [{key: value for key, value in one.items() if key != "share"} for one in _top(self._operators)]
            yield Fact("operators", 1, {"top": top}, self._rank)

    def _block(self, steps: list[tuple[int, tuple[float, float, int]]]) -> Block:
        begins = np.asarray([begin for _, (begin, _, _) in steps])
        ends = np.asarray([end for _, (_, end, _) in steps])
        columns: dict[str, Any] = {
            "step": [number for number, _ in steps],
            "step_seconds": (ends - begins) * _SECOND,
        }
        if self._busy:
            lasted = np.maximum(ends - begins, 1e-9)
            columns["device_busy_share"] = self._busy_time(self._busy, begins, ends) / lasted / len(self._busy)
            columns["kernels"] = self._times["kernels"].within(begins, ends)[0]
            columns["copies"], columns["copied_bytes"] = self._times["copies"].within(begins, ends)
        if self._times["launches"].starts:
            columns["launches"] = self._times["launches"].within(begins, ends)[0]
            columns["sync_seconds"] = self._times["syncs"].within(begins, ends)[1] * _SECOND
        if self._communication.count:
            columns["communication_seconds"] = self._times["communication"].within(begins, ends)[1] * _SECOND
            columns["exposed_communication_seconds"] = self._exposed(begins, ends) * _SECOND
        return block([line for _, (_, _, line) in steps], columns, rank=self._rank)

    def _whole(self, steps: list[tuple[int, tuple[float, float, int]]]) -> dict[str, Any]:
        """Of all steps, or of the whole trace where none are marked."""
        begin, end = (steps[0][1][0], max(step[1][1] for step in steps)) if steps else (self._first, self._last)
        window = np.asarray([begin]), np.asarray([max(end, begin + 1e-9)])
        launches = self._times["launches"]
        said: dict[str, Any] = self._said | {
            "seconds": (end - begin) * _SECOND, "events": self._count, "steps": len(steps),
            "kernels": sum(one.count for one in self._kernels.values()),
            "kernel_seconds": sum(one.micros for one in self._kernels.values()) * _SECOND,
            "launches": len(launches.starts), "launch_seconds": sum(launches.amounts) * _SECOND,
            "copies": {name: one.said() for name, one in self._copies.items()},
            "syncs": {name: one.said() for name, one in self._syncs.items()},
        }  # fmt: skip
        if self._busy:
            share = float(self._busy_time(self._busy, *window)[0] / (window[1] - window[0])[0] / len(self._busy))
            said |= {"devices": len(self._busy), "device_busy_share": share, "idle_share": 1 - share}
        if self._communication.count:
            said["communication_seconds"] = self._communication.micros * _SECOND
            said["exposed_communication_seconds"] = float(self._exposed(*window)[0]) * _SECOND
        return said | ({"memory_peak": self._peaks} if self._peaks else {})

    def _number_of(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            name = name if len(self._numbers) < _MOST_NAMES else "(others)"
            found = self._numbers.setdefault(name, len(self._numbers))
        return found

    def _windows(self, steps: list[tuple[int, tuple[float, float, int]]]) -> Iterator[Fact]:
        """Each step as the profiler of brickprof itself would tell of it."""
        if not self._named or not steps:
            return
        times = self._times["kernels"]
        starts, lasted, named = (
            np.frombuffer(times.starts),
            np.frombuffer(times.amounts),
            np.frombuffer(self._named, "i4"),
        )
        order = np.argsort(starts, kind="stable")
        starts, lasted, named = starts[order], lasted[order], named[order]
        begins = np.asarray([begin for _, (begin, _, _) in steps])
        ends = np.asarray([end for _, (_, end, _) in steps])
        busy = self._busy_time(self._busy, begins, ends) / len(self._busy)
        places = zip(np.searchsorted(starts, begins), np.searchsorted(starts, ends), strict=True)
        names = [clean(name, limit=200) for name in self._numbers]
        for at, (first, last) in enumerate(places):
            number, (begin, end, line) = steps[at]
            if first == last:
                continue
            summed, counted = np.bincount(named[first:last], lasted[first:last]), np.bincount(named[first:last])
            most = [one for one in np.argsort(-summed, kind="stable")[:_TOP] if counted[one]]
            said = {
                "step": number, "kernels": int(last - first), "busy_ns": int(busy[at] * 1e3),
                "step_ns": int((end - begin) * 1e3),
                "names": [[names[one], int(counted[one]), int(summed[one] * 1e3)] for one in most],
            }  # fmt: skip
            yield Fact("window", line, said, self._rank)

    def _busy_time(self, busy: dict[int, _Busy], begins: Floats, ends: Floats) -> Floats:
        total = np.zeros(len(begins))
        for one in busy.values():
            total += one.until(ends) - one.until(begins)
        return total

    def _exposed(self, begins: Floats, ends: Floats) -> Floats:
        return self._busy_time(self._busy, begins, ends) - self._busy_time(self._computing, begins, ends)


def _sum(sums: dict[str, _Sum], name: str) -> _Sum:
    found = sums.get(name)
    if found is None:
        found = sums.setdefault(name if len(sums) < _MOST_NAMES else "(others)", _Sum())
    return found


def _top(sums: dict[str, _Sum]) -> list[dict[str, Any]]:
    total = sum(one.micros for one in sums.values()) or 1.0
    most = sorted(sums.items(), key=lambda item: (-item[1].micros, item[0]))[:_TOP]
    return [{"name": clean(name, limit=200), **one.said(), "share": one.micros / total} for name, one in most]


def _direction(name: str) -> str:
    return next((word for part, word in _DIRECTIONS if part in name), "other")


def _number(value: Any) -> float | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300
    return float(value) if fits else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


READER = ChromeTrace()
