"""What ran on the device, kernel by kernel, out of torch's own profiler: for a step or two, and without a sync.

Enters: ``begin`` and ``end``. Leaves: every kernel, copy and fill of the device between them (name, device time,
stream, when the host launched it), as far as the device had finished them. torch's profiler waits for the device when
it is left; this does not, so the last ones of a window may be missing, and a window is closed a step after the last
that is wanted.

There is one profiler in a process, and it is the script's: nothing is begun while somebody else has prepared it, and
whoever prepares it inside a window ends that first.

CUPTI, which it sees the device through, stays attached to the process once it was used, and every launch takes a third
longer from then on (13.0 us where it took 9.6, H200), unless TEARDOWN_CUPTI has the profiler take it down. Graphs of
the device may fail when they are replayed after that (in every second run that was tried): beside them it never does,
and where the script has decided so itself, beside graphs, there is no window. It is taken down by a thread of the
profiler, at some call of the script's behind the end of a window: until then the variable has to stay as it is.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd import profiler

from brickprof.capture.surroundings import graphs
from brickprof.clock import now

_TAKE_DOWN, _LOG = "TEARDOWN_CUPTI", "KINETO_LOG_LEVEL"
_SAY_LITTLE = "9"
_SAFE_FROM = (12, 6)
"""The first CUDA whose graphs outlive it, by what torch says."""
_LAUNCHES = ("Launch", "Memcpy", "Memset")
_MOVES = "Mem"
"""How the names of copies and fills begin, which alone have bytes."""
Replace = Callable[[Any, str, Callable[[Any], Any]], None]


Within = tuple[int, int]
"""From when, and until when."""
_NOTHING: Within = (0, 0)


class Ran(NamedTuple):
    """One thing that the device did."""

    name: str
    launched_ns: int
    """When the host asked for it; when it began, where that is not known."""
    start_ns: int
    device_ns: int
    stream: int
    bytes: int


_START = attrgetter("start_ns")


class Ways(NamedTuple):
    """How a window could be opened now."""

    leaves: bool
    """So that the profiler lets go of the device afterwards."""
    stays: bool
    """So that it stays attached, and nothing breaks."""


def ways() -> Ways:
    version, now_set = torch.version.cuda, os.environ.get(_TAKE_DOWN)
    given = Window._before.get(_TAKE_DOWN, now_set)  # the script's own, and not what a window has left for a while
    if version is None:
        return Ways(leaves=True, stays=True)
    if given != "1" and (given is not None or _numbers(version) < _SAFE_FROM):
        return Ways(leaves=False, stays=True)
    beside = graphs()
    return Ways(leaves=not beside, stays=not (given == "1" and beside))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


# -- whose it is


class _Others:
    prepared = False
    """Whether somebody else has the profiler, begun or only prepared."""


def install(replace: Replace) -> None:
    """Has torch's profiler tell when somebody takes it, and when it is given back."""

    def taken(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not Window.acts:
                _Others.prepared = True
                with contextlib.suppress(Exception):
                    Window.give_way()
            return original(*args, **kwargs)

        return call

    def given_back(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if not Window.acts:
                    _Others.prepared = False

        return call

    replace(profiler, "_prepare_profiler", taken)
    replace(profiler, "_enable_profiler", taken)
    replace(profiler, "_disable_profiler", given_back)


def in_use() -> bool:
    """Whether the profiler is somebody's just now."""
    return _Others.prepared or bool(torch._C._autograd._profiler_enabled())


class Window:
    """One look through the profiler. ``leaves``: it is to let go of the device afterwards."""

    acts: ClassVar[bool] = False
    """Whether what is done with the profiler just now is our doing."""
    _open: ClassVar[Window | None] = None
    _before: ClassVar[dict[str, str | None]] = {}
    """What the variables were that we have changed, where they are still so."""

    def __init__(self, *, leaves: bool = False) -> None:
        self._leaves = leaves
        self._profile: Any = None
        self._shift = 0

    def begin(self) -> bool:
        """False where the profiler is in use, or has no eyes for the device."""
        if in_use() or not torch.cuda.is_available():
            return False
        self._shift = now() - time.time_ns()
        profile = profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True)
        _put({_LOG: os.environ.get(_LOG, _SAY_LITTLE), _TAKE_DOWN: "1" if self._leaves else "0"})
        with _ours():
            try:
                profile._prepare_trace()
                profile._start_trace()
            except BaseException:
                _stopped()
                restore()
                raise
        self._profile, Window._open = profile, self
        return True

    def end(self, within: Within | None = None, *, last: bool = False) -> list[Ran]:
        """What ran, of all that the host asked for ``within`` these times. The profiler is off afterwards; ``restore``
        has to follow, some steps later. ``last``: the process may be at its end, and nothing that goes on beside it is
        begun."""
        if self._profile is None:
            return []
        self._profile = Window._open = None
        if last or (self._leaves and graphs()):  # made since it was begun
            os.environ[_TAKE_DOWN] = "0"
        with _ours():
            try:
                results = torch._C._autograd._disable_profiler()
            finally:
                _stopped()
        return found(results.events(), self._shift, within)

    @classmethod
    def give_way(cls) -> None:
        """Somebody else is about to take the profiler: what a window has seen so far is lost, and the environment is
        theirs."""
        if cls._open is not None:
            cls._open.end(_NOTHING)
        restore()


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    Window.acts = True
    try:
        yield
    finally:
        Window.acts = False


def _stopped() -> None:
    """torch's own code asks a flag of its own whether a profiler is on, compiled code in every launch."""
    stop = getattr(profiler, "_run_on_profiler_stop", None)
    if stop is not None:
        stop()


def _put(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        Window._before.setdefault(name, os.environ.get(name))
        os.environ[name] = value


def restore() -> None:
    """Puts the environment back as it was before a window."""
    before, Window._before = Window._before, {}
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def found(events: Iterable[Any], shift: int = 0, within: Within | None = None) -> list[Ran]:
    """Device events with the time of the host's call that has the same correlation; ``shift``: to our clock. There are
    thousands, and the training waits: nothing is asked of those that nobody wants."""
    host, launched, seen = torch._C._autograd.DeviceType.CPU, {}, []
    for event in events:
        if event.device_type() == host:
            number = event.correlation_id()
            if number not in launched or any(part in event.name() for part in _LAUNCHES):
                launched[number] = event.start_ns()
        else:
            seen.append(event)
    first, last = within if within is not None else (0, math.inf)
    ran = []
    for event in seen:
        start = event.start_ns()
        asked = launched.get(event.correlation_id(), start) + shift
        if first <= asked < last and not _annotation(event):
            name = event.name()
            size = _bytes(event) if name.startswith(_MOVES) else 0
            ran.append(Ran(name, asked, start + shift, event.duration_ns(), event.device_resource_id(), size))
    ran.sort(key=_START)
    return ran


def _annotation(event: Any) -> bool:
    told = getattr(event, "is_user_annotation", None)
    return told is not None and bool(told())


def _bytes(event: Any) -> int:
    told = getattr(event, "nbytes", None)
    return int(told()) if told is not None else 0
