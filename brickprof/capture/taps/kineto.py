"""What ran on the device, kernel by kernel, out of torch's own profiler: for a step or two, and without a sync.

Enters: ``begin`` and ``end``. Leaves: every kernel, copy and fill of the device between them (name, device time,
stream, when the host launched it), as far as the device had finished them. torch's profiler waits for the device when
it is left; this does not, so the last ones of a window may be missing, and a window is closed a step after the last
that is wanted.

There is one profiler in a process: nothing is begun while somebody else's is on.

CUPTI, which it sees the device through, stays attached to the process once it was used, and every launch takes a third
longer from then on (13.0 us where it took 9.6, H200), unless the profiler is told to take it down. That has to hold
from before its first use to the end: where it stayed attached once, and is taken down later, graphs that the process
holds may fail when they are replayed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd import profiler

from brickprof.capture.surroundings import graphs
from brickprof.clock import now

_SAY_LITTLE = "9"
_TAKE_DOWN = "TEARDOWN_CUPTI"
_SAFE_FROM = (12, 6)
"""The first CUDA whose graphs outlive it."""
_LAUNCHES = ("Launch", "Memcpy", "Memset")


class Ran(NamedTuple):
    """One thing that the device did."""

    name: str
    launched_ns: int
    """When the host asked for it; when it began, where that is not known."""
    start_ns: int
    device_ns: int
    stream: int
    bytes: int


class _Told:
    late = False
    """Whether the profiler may have been used before it was told."""


def let_go(*, late: bool = False) -> None:
    """Has torch's profiler take CUPTI down whenever it has ended, unless somebody has decided about that before.
    ``late``: others have had the time to use it."""
    version = torch.version.cuda
    if version is not None and _numbers(version) >= _SAFE_FROM and _TAKE_DOWN not in os.environ:
        os.environ[_TAKE_DOWN] = "1"
        _Told.late = late


def safe(*, asked: bool) -> bool:
    """Whether a window harms no graph of a device; where nobody ``asked`` for it there is none beside graphs at all."""
    return not ((_Told.late or not asked) and graphs())


def lets_go() -> bool:
    """Whether a launch takes after a window what it took before."""
    return torch.version.cuda is None or os.environ.get(_TAKE_DOWN) == "1"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class Window:
    """One look through the profiler."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._shift = 0

    def begin(self) -> bool:
        """False where the profiler is in use, or has no eyes for the device."""
        if torch._C._autograd._profiler_enabled() or not torch.cuda.is_available():
            return False
        self._shift = now() - time.time_ns()
        profile = profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
        with _without_its_log():
            profile._prepare_trace()
            profile._start_trace()
        self._profile = profile
        return True

    def end(self) -> list[Ran]:
        """What ran. The profiler is off afterwards."""
        if self._profile is None:
            return []
        self._profile = None
        results = torch._C._autograd._disable_profiler()
        return found(results.events(), self._shift)


@contextlib.contextmanager
def _without_its_log() -> Iterator[None]:
    """The profiler says on stderr that it begins, which is the script's; it reads how much to say when it is first
    begun."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = _SAY_LITTLE
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def found(events: Iterable[Any], shift: int = 0) -> list[Ran]:
    """Device events with the time of the host's call that has the same correlation; ``shift``: to our clock."""
    ran, launched = [], {}
    for event in events:
        if event.device_type() == torch._C._autograd.DeviceType.CPU:
            if any(part in event.name() for part in _LAUNCHES):
                launched[event.correlation_id()] = event.start_ns()
        elif not getattr(event, "is_user_annotation", _no)():
            ran.append(event)
    return sorted((_ran(event, launched, shift) for event in ran), key=lambda each: each.start_ns)


def _no() -> bool:
    return False


def _ran(event: Any, launched: dict[int, int], shift: int) -> Ran:
    start = event.start_ns()
    size = getattr(event, "nbytes", None)
    return Ran(
        event.name(), launched.get(event.correlation_id(), start) + shift, start + shift, event.duration_ns(),
        event.device_resource_id(), int(size()) if size is not None else 0,
    )  # fmt: skip
