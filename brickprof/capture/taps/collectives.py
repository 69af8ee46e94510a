"""Collectives of ``torch.distributed`` and the handles they give: what is under way, and who waits for it.

Enters: calls. Leaves: ``collective`` signals in steps that are looked at; ``current``, in every step, for whoever wants
to know what the process is stuck in. Never a collective and never a wait of our own. Those that a wrapper makes by
itself in C++ (DDP's buckets) are not seen here.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
import weakref
from functools import partial
from typing import Any

import torch

from brickprof.capture import hub
from brickprof.capture.desk import desk
from brickprof.capture.sites import caller
from brickprof.capture.taps import Replace

_OPS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv", "isend",
    "irecv", "barrier", "monitored_barrier", "batch_isend_irecv", "broadcast_object_list",
)  # fmt: skip
_MOST_HANDLES = 1024
_compiling = torch.compiler.is_compiling
_counter = time.perf_counter_ns
_seqs: dict[str, int] = {}


class Issued:
    """One collective that was asked for."""

    __slots__ = (
        "asynchronous", "dtype", "ended", "group", "numel", "op", "ranks", "seq", "site", "started", "thread", "waited",
    )  # fmt: skip

    def __init__(self, op: str, group: str) -> None:
        self.op, self.group = op, group
        self.seq = _seqs[group] = _seqs.get(group, 0) + 1
        self.started, self.ended = _counter(), 0
        self.thread = threading.get_ident()
        self.asynchronous = False
        self.waited: bool | None = None
        self.site = ""
        self.ranks: int | None = None
        self.numel: int | None = None
        self.dtype: str | None = None


current: Issued | None = None
handles: dict[int, tuple[weakref.ref[Any], Issued]] = {}
"""Handles that nobody waited for yet, of steps that were looked at."""


def install(replace: Replace) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for name in _OPS:
        if name in distributed_c10d.__dict__ and name in torch.distributed.__dict__:
            # One wrapper for both names: torch.compile knows collectives by the function itself.
            wrapper = _tap(distributed_c10d.__dict__[name], name)
            replace(distributed_c10d, name, partial(_given, wrapper))
            replace(torch.distributed, name, partial(_given, wrapper))
    replace(torch.distributed.Work, "wait", _wait)


def _given(wrapper: Any, _original: Any) -> Any:
    return wrapper


def _tap(original: Any, op: str) -> Any:
    order = list(inspect.signature(original).parameters)

    def call(*args: Any, **kwargs: Any) -> Any:
        global current
        if _compiling() or not hub.sessions or current is not None:
            return original(*args, **kwargs)
        given = kwargs if not args else dict(zip(order, args, strict=False)) | kwargs
        issued = current = Issued(op, _group_name(given.get("group")))
        if desk.listening:
            _describe(issued, given)
        try:
            result = original(*args, **kwargs)
        finally:
            current = None
        issued.ended = _counter()
        if desk.listening:
            with contextlib.suppress(Exception):
                _issued(issued, result)
        return result

    return call


def _group_name(group: Any) -> str:
    with contextlib.suppress(Exception):  # a group may be destroyed: the collective itself will say so
        return "world" if group is None else str(getattr(group, "group_name", "world"))
    return "world"


def _describe(issued: Issued, given: dict[str, Any]) -> None:
    try:
        issued.site = caller()
        issued.ranks = torch.distributed.get_world_size(given.get("group"))
        moved = next((value for value in given.values() if isinstance(value, torch.Tensor)), None)
        if moved is not None:
            issued.numel, issued.dtype = moved.numel(), str(moved.dtype).removeprefix("torch.")
    except Exception:
        return


def _issued(issued: Issued, result: Any) -> None:
    works = result if isinstance(result, list) else [result]
    for work in works:
        if isinstance(work, torch.distributed.Work) and len(handles) < _MOST_HANDLES:
            issued.asynchronous, issued.waited = True, False
            key = id(work)
            handles[key] = (weakref.ref(work, partial(_let_go, key)), issued)
    hub.emit("collective", issued, "open" if issued.asynchronous else "done")


def _let_go(key: int, _reference: Any) -> None:
    """A handle is gone and nobody waited for it."""
    known = handles.pop(key, None)
    if known is not None and not known[1].waited:
        hub.tell("collective", known[1], "orphaned")


def _wait(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        global current
        known = None if _compiling() else handles.pop(id(self), None)
        if known is None:
            return original(self, *args, **kwargs)
        issued = known[1]
        start = _counter()
        before, current = current, issued
        try:
            return original(self, *args, **kwargs)
        finally:
            current = before
            issued.waited, issued.started, issued.ended = True, start, _counter()
            hub.tell("collective", issued, "wait")

    return call
