"""Every call of a Triton kernel with what it is given: the function, its arguments and its grid.

Enters: ``listen`` and ``stop``, around steps in which calls are wanted. Leaves: a ``Call`` of each launch that a line
of the user's asked for, before it is made; the launch itself then happens with exactly the arguments it was given.
Launch hooks do not tell the arguments, so the method that every launch goes through is replaced for a while. A kernel
of the user's that is launched as a ``brickprof.operators.launch.Kernel`` goes through it meanwhile, too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from brickprof.capture import sites
from brickprof.capture.taps import triton_launches
from brickprof.capture.taps.swap import Swap
from brickprof.operators import queueing

_LAUNCHING = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
_HANDS_ON = frozenset(str(Path(queueing.__file__).with_name(name)) for name in ("launch.py", "queueing.py"))
"""What launches for whoever calls it."""
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
_swap: Swap | None = None


def listen(hear: Hear) -> bool:
    """From now on ``hear`` is told of every launch; False where Triton is not in use, or somebody listens already."""
    global _hear, _swap
    plan = [(owner, ("run",), _made) for owner in _owners()]
    if _hear is not None or not plan:
        return False
    _hear, _swap = hear, Swap(plan)
    _swap.put()
    queueing.attend(True)
    return True


def stop() -> None:
    global _hear, _swap
    queueing.attend(False)
    if _swap is not None:
        _swap.back()
    _hear = _swap = None


def _owners() -> list[Any]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in _LAUNCHING)
    return [owner for owner in found if owner is not None and "run" in vars(owner)]


def _made(original: Any, _name: str) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _hear is not None and not kwargs.get("warmup"):
            with contextlib.suppress(Exception):
                _tell(_hear, self, original, args, kwargs, sys._getframe(1))
        return original(self, *args, **kwargs)

    return run


def _tell(
    hear: Hear, function: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
) -> None:
    site = _asked(frame)
    if site is not None:
        hear(Call(function, run, args, dict(kwargs), site, _timed(frame)))


def _asked(frame: FrameType | None) -> str | None:
    """The user's line, past what launches for it; None where we launch for ourselves."""
    while frame is not None and _passes(frame.f_code.co_filename):
        frame = frame.f_back
    return triton_launches.asked(frame)


def _passes(name: str) -> bool:
    return name in _HANDS_ON or triton_launches.triton(name) or sites.wraps(name)


def _timed(frame: FrameType | None) -> bool:
    while frame is not None and triton_launches.triton(frame.f_code.co_filename):
        if frame.f_code.co_name in _BENCHMARKS:
            return True
        frame = frame.f_back
    return False
