"""When bricks ran on the device: marks that are queued between their kernels now, and asked in a later step.

Enters: beginnings and ends of bricks, in steps whose spans are wanted. Leaves: their span rows, with the time on the
device beside the host's and what it may be, where somebody knows. A mark is an event of the stream that is current;
nobody waits for one, and what the device has not reached when the run ends is written without its time.

An event tells how long after another it was reached, not when. So each step has a first mark, from which all others
are counted, and the whole is laid on the host's clock as early as can be: no mark was reached before it was queued. It
lies true wherever the device waited for the host once in the step, and a little early else.

Events of two devices cannot be compared. So all marks of a step are on one device, the one on which the model puts out
its result, whichever is current; what is known to have run on another has the host's time alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from brickprof.capture.surroundings import hands_off
from brickprof.clock import now
from brickprof.records import BUDGET, DECLARED, PHASES

_ID, _BRICK, _PHASE, _STEP, _DEVICE_NS, _STREAM, _ATTRIBUTES = 0, 2, 3, 4, 8, 9, 10  # columns of a span
_MOST_PENDING = 64
"""Steps; a device that far behind is not asked for more."""
_MOST_SPANS = 8192
_MOST_FOR_KERNELS = 4096
"""Launches leave room for bricks."""
_KEPT = 1024
_MOST_ERRORS = 3


class Event(Protocol):
    def query(self) -> bool: ...
    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from this event to ``later``."""


class Mark(NamedTuple):
    """A place in a stream."""

    event: Event
    queued: int
    """When the host put it there."""
    stream: int
    device: int


class _Step(NamedTuple):
    """What is known of one step before the device has reached it."""

    first: Mark
    spans: list[tuple[list[Any], Mark, Mark]]
    kernels: set[int]
    """Which of them, by id, are launches of kernels: of these nothing is learned."""


class Cuda:
    """Events and streams."""

    def ready(self) -> bool:
        return torch.cuda.is_initialized() and not hands_off()

    def current(self) -> int:
        return torch.cuda.current_device()

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: torch.cuda.Event, device: int) -> int:
        """Puts it into the stream that is current on ``device``; which one that is."""
        stream = torch.cuda.current_stream(device)
        event.record(stream)
        return int(stream.cuda_stream)


class DeviceClock:
    lane: Any = Cuda()

    def __init__(
        self, write: Callable[[tuple[Any, ...]], None],
        learn: Callable[[int, int, list[tuple[int, int, int]]], None] = lambda _step, _whole, _times: None,
        budget: Callable[[int, int], float | None] = lambda _brick, _phase: None,
        declared: Callable[[int, int], float | None] = lambda _brick, _phase: None,
    ) -> None:  # fmt: skip
        """``learn``: told the (brick, phase, ns) of each step, and how long the device took for the whole of it;
        ``budget``: what a brick may take in a phase, in ns; ``declared``: that, where somebody said so."""
        self._write = write
        self._learn = learn
        self._budget = budget
        self._declared = declared
        self._step: _Step | None = None
        self._pending: list[_Step] = []
        self._free: list[Event] = []
        self._device: int | None = None
        """That of this step's marks, and of the events that are free."""
        self.home: int | None = None
        """The device that is to be timed; None while nobody has said so: the current one."""
        self._error: Exception | None = None
        self._errors = 0
        self._streams: dict[int, int] = {}
        self._spans = 0

    @property
    def running(self) -> bool:
        """Whether the bricks of this step are timed on the device."""
        return self._step is not None

    @property
    def first(self) -> Mark | None:
        """Where the step began on the device."""
        return None if self._step is None or self._away(self.home) else self._step.first

    def begin(self, wanted: bool) -> None:
        """A step begins; writes what the device has done of those before. Raises what went wrong since the last."""
        if self._step is not None:
            self._pending.append(self._step)
            self._step = None
        if self._pending:
            self.resolve()
        if wanted and self._errors < _MOST_ERRORS and self.lane.ready() and len(self._pending) < _MOST_PENDING:
            self._settle()
            first = self._marked()
            self._step = None if first is None else _Step(first, [], set())
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def mark(self, device: int = -1, *, current: bool = False) -> Mark | None:
        """Here in the stream; None in steps that are not timed, and of what is known to run on another ``device``,
        or where another one is ``current``."""
        if self._step is None or self._away(self.home) or self._away(device) or not self.lane.ready():
            return None
        return None if current and self._away(self.lane.current()) else self._marked()

    def _settle(self) -> None:
        """An event stays with the device on which it was recorded first."""
        device = self.lane.current() if self.home is None else self.home
        if device != self._device:
            self._free.clear()
            self._device = device

    def _away(self, device: int | None) -> bool:
        return device is not None and device >= 0 and device != self._device

    def _marked(self) -> Mark | None:
        try:
            event = self._free.pop() if self._free else self.lane.event()
            queued = now()
            return Mark(event, queued, self.lane.record(event, self._device), self._device or 0)
        except Exception as error:
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        if self._error is None:  # else it is told already, and one step is one error
            self._error, self._errors = error, self._errors + 1

    def span(self, row: tuple[Any, ...], before: Mark, after: Mark, *, kernel: bool = False) -> None:
        """Writes ``row`` once the device has passed both marks."""
        if self._step is None or self._spans >= (_MOST_FOR_KERNELS if kernel else _MOST_SPANS):
            self._write(row)
            return
        if kernel:
            self._step.kernels.add(row[_ID])
        self._spans += 1
        self._step.spans.append((list(row), before, after))

    def resolve(self, *, last: bool = False) -> None:
        """Writes the steps that the device is done with; ``last``: all, some without their time."""
        if last and self._step is not None:
            self._pending.append(self._step)
            self._step = None
        may_ask = self.lane.ready()  # asking an event would break a graph that is being captured
        waiting = []
        for step in self._pending:
            done = may_ask and self._passed(step)
            if not done and not last and self._errors < _MOST_ERRORS:
                waiting.append(step)
                continue
            for row, _, _ in step.spans:
                self._write(tuple(row))
            self._spans -= len(step.spans)
            if done and len(self._free) < _KEPT and step.first.device == self._device:
                self._free += {id(mark.event): mark.event for mark in _marks(step)}.values()
        self._pending = waiting

    def _passed(self, step: _Step) -> bool:
        """Whether the device has passed all marks of a step, which then has its times."""
        marks = _marks(step)
        try:
            if not marks[-1].event.query() or not all(mark.event.query() for mark in marks):
                return False
            times = {id(mark): int(step.first.event.elapsed_time(mark.event) * 1e6) for mark in marks}
        except Exception as error:
            self._failed(error)
            return False
        try:
            self._timed(step, marks, times)
        except Exception as error:  # ours, and the same the next time
            self._failed(error)
        return True

    def _timed(self, step: _Step, marks: list[Mark], after_first: dict[int, int]) -> None:
        """Fills in the times of a step whose marks have all been passed."""
        began = max(mark.queued - after_first[id(mark)] for mark in marks)
        for row, before, after in step.spans:
            start, end = after_first[id(before)], after_first[id(after)]
            row[_DEVICE_NS] = max(end - start, 0)
            row[_STREAM] = self._streams.setdefault(before.stream, len(self._streams))
            row[_ATTRIBUTES] = _with(row[_ATTRIBUTES], f'"device_start_ns":{began + start}')
            budget = self._budget(row[_BRICK], row[_PHASE])
            if budget is not None and f'"{BUDGET}"' not in row[_ATTRIBUTES]:
                row[_ATTRIBUTES] = _with(row[_ATTRIBUTES], f'"{BUDGET}":{round(budget / 1000, 3)}')
                if self._declared(row[_BRICK], row[_PHASE]) is not None:
                    row[_ATTRIBUTES] = _with(row[_ATTRIBUTES], f'"{DECLARED}":true')
        whole = next((row for row, _, _ in step.spans if row[_PHASE] == PHASES.index("step")), None)
        if whole is not None:
            bricks = [row for row, _, _ in step.spans if row is not whole and row[_ID] not in step.kernels]
            times = [(row[_BRICK], row[_PHASE], row[_DEVICE_NS]) for row in bricks]
            self._learn(whole[_STEP], whole[_DEVICE_NS], times)


def _marks(step: _Step) -> list[Mark]:
    return [step.first, *(mark for _, before, after in step.spans for mark in (before, after))]


def _with(attributes: str | None, told: str) -> str:
    return f"{{{told}}}" if not attributes or attributes == "{}" else f"{attributes[:-1]},{told}}}"
