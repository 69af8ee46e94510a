"""What every launch of a Triton kernel is given, for as long as anybody wants to know.

Enters: whoever wants to ``hear`` of launches, until ``unhear``. Leaves: a ``Launch`` to each of them, before it is
made; whatever goes wrong in the telling, it is made as it was asked for.

Launch hooks do not tell the arguments, so the method that every launch goes through is replaced for a while: once,
however many hear. Two stand-ins, one over the other, that are taken away in another order would leave one behind. A
kernel that is launched as a ``brickprof.operators.launch.Kernel`` goes through that method meanwhile, too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from brickprof.capture.taps.swap import Swap
from brickprof.operators import queueing

_LAUNCHING = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))


@dataclass(slots=True)
class Launch:
    """One that is about to be made."""

    function: Any
    run: Callable[..., Any]
    """The method that launches, as it was found."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """With the grid, as ``grid``."""
    frame: FrameType | None
    """Who calls."""


Hear = Callable[[Launch], None]
_hearing: tuple[Hear, ...] = ()
_swap: Swap | None = None
_placed: tuple[Any, ...] = ()
"""The stand-ins that tell. One from before, which somebody has wrapped and kept, only hands on."""


def hear(told: Hear) -> bool:
    """From now on ``told`` is called before each launch; False where Triton is not in use."""
    global _hearing
    if not _hearing and not _put():
        return False
    _hearing = (*_hearing, told)
    return True


def unhear(told: Hear) -> None:
    global _hearing
    _hearing = tuple(each for each in _hearing if each != told)
    if not _hearing:
        _back()


def _put() -> bool:
    global _swap, _placed
    owners = _owners()
    if not owners:
        return False
    _swap = Swap([(owner, ("run",), _made) for owner in owners])
    _swap.put()
    _placed = tuple(vars(owner)["run"] for owner in owners)
    queueing.attend(True)
    return True


def _back() -> None:
    global _swap, _placed
    queueing.attend(False)
    if _swap is not None:
        _swap.back()
    _swap, _placed = None, ()


def _owners() -> list[Any]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in _LAUNCHING)
    return [owner for owner in found if owner is not None and "run" in vars(owner)]


def _made(original: Any, _name: str) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if run in _placed and not kwargs.get("warmup"):
            with contextlib.suppress(Exception):
                _tell(Launch(self, original, args, kwargs, sys._getframe(1)))
        return original(self, *args, **kwargs)

    return run


def _tell(launch: Launch) -> None:
    for told in _hearing:
        with contextlib.suppress(Exception):
            told(launch)
