"""Every launch of a Triton kernel, the user's too, through Triton's own chain of launch hooks.

Enters: ``listen`` and ``stop``, around steps whose spans are wanted. Leaves: the name of each kernel that is about to
be queued, to whoever listens, and a call when it was. A hook is added to the chain and taken out again; nobody's hook
is replaced, and where Triton has no chain (another version, the interpreter) nothing is heard.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from brickprof.capture import sites

Begin = Callable[[str, str], Callable[[], None] | None]
"""Of a kernel's name and the user's line: what to call when it was queued."""

_begin: Begin | None = None
_open: list[Callable[[], None] | None] = []


def listen(begin: Begin) -> bool:
    """From now on ``begin`` hears of every launch; False where that cannot be."""
    global _begin
    chains = _chains()
    if chains is None:
        return False
    _begin = begin
    _open.clear()
    chains[0].add(_entered)
    chains[1].add(_left)
    return True


def stop() -> None:
    global _begin
    _begin = None
    chains = _chains()
    if chains is not None:
        chains[0].remove(_entered)
        chains[1].remove(_left)
    _open.clear()


def _chains() -> tuple[Any, Any] | None:
    knobs = sys.modules.get("triton.knobs")
    runtime = getattr(knobs, "runtime", None)
    chains = getattr(runtime, "launch_enter_hook", None), getattr(runtime, "launch_exit_hook", None)
    chained = all(hasattr(chain, "add") and hasattr(chain, "remove") for chain in chains)
    return chains if chained else None


def _entered(metadata: Any) -> None:
    ended = None
    with contextlib.suppress(Exception):
        if _begin is not None and (line := asked(sys._getframe(1))) is not None:
            ended = _begin(_name(metadata), line)
    _open.append(ended)


def _left(_metadata: Any) -> None:
    ended = _open.pop() if _open else None
    if ended is not None:
        with contextlib.suppress(Exception):
            ended()


def _name(metadata: Any) -> str:
    """The kernel's own name. What the user's function would add to it is not asked for: it may cost anything."""
    told = getattr(metadata, "data", metadata)
    name = told.get("name") if isinstance(told, dict) else None
    return str(name) if name else "triton"


def others_listen() -> bool:
    """Whether somebody else hears of launches, in whatever way this version of Triton has for it."""
    runtime = getattr(sys.modules.get("triton.knobs"), "runtime", None)
    hooks = [getattr(runtime, name, None) for name in ("launch_enter_hook", "launch_exit_hook")]
    calls = [call for hook in hooks if hook is not None for call in getattr(hook, "calls", (hook,))]
    return any(call not in (_entered, _left) for call in calls)


def asked(frame: FrameType | None) -> str | None:
    """The user's line; None where we launch ourselves, on the way to which no line is the user's."""
    while frame is not None and (triton(frame.f_code.co_filename) or sites.wraps(frame.f_code.co_filename)):
        frame = frame.f_back
    found = sites.asked(frame)
    return None if found is None else found[0]


def triton(name: str) -> bool:
    """Whether the file ``name`` is Triton's."""
    known = _known.get(name)
    if known is None:
        root = getattr(sys.modules.get("triton"), "__path__", [""])[0]
        known = _known[name] = bool(root) and name.startswith(root)
    return known


_known: dict[str, bool] = {}
