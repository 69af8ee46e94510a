"""Values that the host asks for: ``.item()``, ``bool(t)``, ``.tolist()``, ``print(t)``, ``nonzero``, and how long it
waits for them; and where it waits for a device without asking for any (``torch.cuda.synchronize()``).

Enters: ``watch`` and ``unwatch``, around a step that is sampled; ``told`` for reads that are seen elsewhere (a copy to
the host, an index by a mask). Leaves: reads by the user's line and by kind, with the time that each took; and those of
a device, one by one, to whoever watches, less copies, which are bricks already. Only then
are these functions replaced; never once something was compiled, and our own reads do not count. A number on the host
is a read too (the same line would wait on a device); what only has a size that depends on values is one on a device.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

from brickprof.capture import copies, loops, sites
from brickprof.capture.taps.swap import Swap
from brickprof.clock import now

_NUMBERS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__complex__")
_SIZED = (
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "equal", "allclose",
    "is_nonzero",
)  # fmt: skip
"""Functions whose result has a size, or is a decision, that the host learns from the values."""
_WAITING = (
    (torch.cuda, "synchronize"), (torch.accelerator, "synchronize"), (torch.cuda.Stream, "stream.synchronize"),
    (torch.cuda.Event, "event.synchronize"),
)  # fmt: skip
WAITS = frozenset(kind for _, kind in _WAITING)
"""Kinds that ask for no value. Behind an event the device may have more to do."""
_KINDS = {"__repr__": "print"}
_active = threading.local()
_compiling = torch.compiler.is_compiling


class Read(NamedTuple):
    """What one line read in one way."""

    site: str
    kind: str


class Tally:
    """Reads of one line: how many, of whole tensors, of a device, nanoseconds until they were there, and of the one
    that took longest."""

    __slots__ = ("count", "device", "longest", "ns", "whole")

    def __init__(self) -> None:
        self.count = self.whole = self.device = self.ns = self.longest = 0


found: dict[Read, Tally] = {}
around: dict[str, list[str]] = {}
"""What the loops around a line that reads often run over, as they are written."""
_OFTEN, _MOST_LINES = 8, 64
own = Tally()
"""What torch read of a device for itself: a scaler, a check."""


Heard = Callable[[str, str, int, int], None]
"""Told of a wait for a device: its kind, the user's line, when it began and when it was over."""
_heard: Heard | None = None


def watch(heard: Heard | None = None) -> None:
    """From now on reads are counted."""
    global own, _heard
    found.clear()
    own = Tally()
    _heard = heard
    _swap.put()


def unwatch() -> dict[Read, Tally]:
    """Puts the functions back; what each of the user's lines read, and how."""
    global _heard
    _swap.back()
    _heard = None
    return dict(found)


def told(kind: str, site: str, direct: bool, *, ns: int, on_host: bool = False, whole: bool = False) -> None:
    """The line ``site`` read something, by itself or (not ``direct``) through torch's own work."""
    if _swap.on:
        _add(found.setdefault(Read(site, kind), Tally()) if site and direct else own, ns, on_host, whole)


def _add(tally: Tally, ns: int, on_host: bool, whole: bool) -> None:
    tally.count += 1
    tally.whole += whole
    tally.device += not on_host
    tally.ns += ns
    tally.longest = max(tally.longest, ns)


def _counted(original: Any, name: str) -> Any:
    kind, sized = _KINDS.get(name, name.strip("_")), name in (*_SIZED, "where", "__repr__")

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _swap.on or _compiling() or getattr(_active, "on", False):
            return original(*args, **kwargs)
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, torch.Tensor) or (sized and copies.place(given) in ("", copies.HOST)):
            return original(*args, **kwargs)
        if name == "where" and len(args) + len(kwargs) > 1:
            return original(*args, **kwargs)
        result, start, end = _timed(original, args, kwargs)
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            _count(given, kind, start, end, sys._getframe(1))
        return result

    return call


def _waiting(kind: str, original: Any, _name: str) -> Any:
    """A function that waits for a device, a stream or an event."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _swap.on or _compiling() or getattr(_active, "on", False):
            return original(*args, **kwargs)
        result, start, end = _timed(original, args, kwargs)
        with contextlib.suppress(Exception):
            if (asked := sites.asked(sys._getframe(1))) is not None:
                _waited(kind, asked, start, end)
        return result

    return call


def _timed(original: Any, args: Any, kwargs: Any) -> tuple[Any, int, int]:
    """What it returns, when it began and when it was over; what it calls itself is no read of its own."""
    _active.on, start = True, now()
    try:
        return original(*args, **kwargs), start, now()
    finally:
        _active.on = False


def _waited(kind: str, asked: tuple[str, bool], start: int, end: int, *, whole: bool = False) -> None:
    told(kind, *asked, ns=end - start, whole=whole)
    if _heard is not None:
        _heard(kind, asked[0], start, end)


def _count(given: torch.Tensor, kind: str, start: int, end: int, frame: FrameType) -> None:
    ns, on_host, whole = end - start, copies.place(given) == copies.HOST, given.dim() > 0
    while sites.wraps(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    if on_host:  # torch itself reads many of those: only what the user's own line asks for
        if sites.users(frame.f_code.co_filename):
            told(kind, site := sites.line(frame), True, ns=ns, on_host=True, whole=whole)
            _look_around(Read(site, kind), frame)
        return
    asked = sites.asked(frame)
    if asked is not None:
        _waited(kind, asked, start, end, whole=whole)
        _look_around(Read(asked[0], kind), frame)


def _look_around(read: Read, frame: FrameType) -> None:
    tally = found.get(read)
    if tally is None or tally.count < _OFTEN or read.site in around or len(around) >= _MOST_LINES:
        return
    around[read.site] = []
    around[read.site] = [loop.over for loop in loops.around(frame)]


_swap = Swap([
    (torch.Tensor, (*_NUMBERS, *_SIZED, "where", "__repr__"), _counted),
    (torch, (*_SIZED, "where"), _counted),
    *((owner, ("synchronize",), partial(_waiting, kind)) for owner, kind in _WAITING),
])  # fmt: skip
