"""What ran on the device, kernel by kernel, out of torch's own profiler: for a step or two, and without a sync.

Enters: ``begin`` and ``end``. Leaves: every kernel, copy and fill of the device between them (name, device time,
stream, when the host launched it), as far as the device had finished them. torch's profiler waits for the device when
it is left; this does not, so the last ones of a window may be missing, and a window is closed a step after the last
that is wanted.

There is one profiler in a process: nothing is begun while somebody else's is on.

CUPTI, which it sees the device through, stays attached to the process once it was used, and every launch takes a third
longer from then on (13.0 us where it took 9.6, H200). The profiler takes it down if it is told so, from before a window
until behind it. Graphs of the device may fail when they are replayed after that (in every second run that was tried):
beside them it is never told so.
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


def lets_go() -> bool:
    """Whether the profiler can leave the device after a window as it was before, and nothing breaks by that."""
    given, version = os.environ.get(_TAKE_DOWN), torch.version.cuda
    if version is None:
        return True
    told = given == "1" or (given is None and _numbers(version) >= _SAFE_FROM)
    return told and not graphs()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


class Window:
    """One look through the profiler. ``leaves``: it is to let go of the device afterwards, if it can."""

    def __init__(self, *, leaves: bool = False) -> None:
        self._profile: Any = None
        self._shift = 0
        self._variables = {"KINETO_LOG_LEVEL": _SAY_LITTLE} | ({_TAKE_DOWN: "1"} if leaves and lets_go() else {})

    def begin(self) -> bool:
        """False where the profiler is in use, or has no eyes for the device."""
        if torch._C._autograd._profiler_enabled() or not torch.cuda.is_available():
            return False
        self._shift = now() - time.time_ns()
        profile = profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
        with _environment(self._variables):
            profile._prepare_trace()
            profile._start_trace()
        self._profile = profile
        return True

    def end(self) -> list[Ran]:
        """What ran. The profiler is off afterwards."""
        if self._profile is None:
            return []
        self._profile = None
        if _TAKE_DOWN in self._variables and graphs():
            del self._variables[_TAKE_DOWN]  # made since it was begun
        with _environment(self._variables):
            results = torch._C._autograd._disable_profiler()
        return found(results.events(), self._shift)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """With these, as far as nobody has set them: the profiler reads there how much to say on stderr, which is the
    script's, when it is first begun, and whether to let go of the device, when it begins and when it ends."""
    missing = variables.keys() - os.environ.keys()
    os.environ.update({name: variables[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


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
