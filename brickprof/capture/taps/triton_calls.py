"""Every call of a Triton kernel that a line of the user's asked for, with that line and what the kernel is given.

Enters: ``listen`` and ``stop``, around steps in which calls are wanted. Leaves: a ``Call`` of each launch that a line
of the user's asked for, before it is made; the launch itself then happens with exactly the arguments it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from brickprof.capture import sites
from brickprof.capture.taps import triton_arguments, triton_launches
from brickprof.capture.taps.triton_arguments import Launch

_BENCHMARKS = frozenset({"kernel_call", "_bench", "do_bench", "do_bench_cudagraph"})


class Call(NamedTuple):
    function: Any
    run: Callable[..., Any]
    """The method that launches, as it was found."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """With the grid, as ``grid``."""
    site: str
    benchmark: bool
    """Whether the launch is one of many that are only timed."""


Hear = Callable[[Call], None]
_hear: Hear | None = None


def listen(hear: Hear) -> bool:
    """From now on ``hear`` is told of every launch; False where Triton is not in use, or somebody listens already."""
    global _hear
    if _hear is not None or not triton_arguments.hear(_heard):
        return False
    _hear = hear
    return True


def stop() -> None:
    global _hear
    triton_arguments.unhear(_heard)
    _hear = None


def _heard(launch: Launch) -> None:
    site = _asked(launch.frame)
    if _hear is not None and site is not None:
        given = dict(launch.kwargs)
        _hear(Call(launch.function, launch.run, launch.args, given, site, _timed(launch.frame)))


def _asked(frame: FrameType | None) -> str | None:
    """The user's line, past what launches for it; None where we launch for ourselves."""
    while frame is not None and _passes(frame.f_code.co_filename):
        frame = frame.f_back
    return triton_launches.asked(frame)


def _passes(name: str) -> bool:
    return sites.launches(name) or triton_launches.triton(name) or sites.wraps(name)


def _timed(frame: FrameType | None) -> bool:
    while frame is not None and triton_launches.triton(frame.f_code.co_filename):
        if frame.f_code.co_name in _BENCHMARKS:
            return True
        frame = frame.f_back
    return False
