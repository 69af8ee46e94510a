"""Copies of tensors between host and device, as the script asks for them.

Enters: ``watch`` and ``unwatch``, around a step that is sampled. Leaves: a ``Copy`` for each, with the user's line, to
whoever watches. Only then are the functions that copy replaced; never once something was compiled, and our own copies
do not count. What autograd sends back for a copy that is part of the graph is heard of at its node.

Of copies that stay on their device those are told that a line of the script makes by ``copy_``.
A copy to the host that blocks is also a read: the host waits for all that the device was given before.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch
from torch.utils import _device

from brickprof.capture import copies, sites
from brickprof.capture.copies import Copy
from brickprof.capture.surroundings import hands_off
from brickprof.capture.taps import indexing, reads
from brickprof.capture.taps.swap import Swap
from brickprof.clock import now

Tensor = torch.Tensor
Way = Callable[[], str]
_compiling = torch.compiler.is_compiling


class Listener(Protocol):
    def copying(self, way: Way, *, timed: bool) -> Any:
        """A copy may be about to be queued, which ``way`` tells where asked; ``timed`` where the device has to do with
        it: whatever is to be handed to ``queued`` and ``copied``."""

    def queued(self, mark: Any) -> None:
        """It was, or there was none after all, or it raised."""

    def copied(self, copy: Copy, mark: Any) -> None: ...


Marks = list[tuple[Listener, Any]]


_listeners: list[Listener] = []
_active = threading.local()


def watch(listener: Listener) -> None:
    """From now on ``listener`` hears of copies."""
    if listener not in _listeners:
        _listeners.append(listener)
    _device._device_constructors()  # remembers functions by identity, once: not the ones that stand in for a while
    _swap.put()


def unwatch(listener: Listener) -> None:
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        _swap.back()


def _idle() -> bool:
    return not _listeners or _compiling() or getattr(_active, "on", False)


def _inside(
    original: Any, args: Any, kwargs: Any, way: Way | None, *, timed: bool = True
) -> tuple[Any, int, int, Marks]:  # fmt: skip
    """Calls ``original``, which copies nothing if it has no ``way``; what it calls in turn is part of it."""
    marks = [(listener, None) for listener in _listeners] if way is None else _announced(way, timed=timed)
    _active.on, start = True, now()
    try:
        return original(*args, **kwargs), start, now(), marks
    finally:
        _active.on = False
        if way is not None:
            _queued(marks)


def _announced(way: Way, *, timed: bool) -> Marks:
    marks: Marks = []
    with contextlib.suppress(Exception):
        marks.extend((listener, listener.copying(way, timed=timed)) for listener in tuple(_listeners))
    return marks


def _queued(marks: Marks) -> None:
    with contextlib.suppress(Exception):
        for listener, mark in marks:
            listener.queued(mark)


def _moving(original: Any, name: str) -> Any:
    """to, cuda, cpu, pin_memory: a tensor, and perhaps another one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if _idle() or not args:
            return original(*args, **kwargs)
        way = (lambda: bound(name, args, kwargs)) if _may_leave(name, args, kwargs) else None
        result, start, end, marks = _inside(original, args, kwargs, way, timed=name != "pin_memory")
        if result is not args[0]:
            _tell(args[0], result, name, args, kwargs, (start, end), marks, sys._getframe(1))
        return result

    return call


def _may_leave(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a tensor may go elsewhere: a cast stays where it is."""
    if name == "cpu" and copies.place(args[0]) == copies.HOST:
        return False
    return not (len(args) > 1 and isinstance(args[1], torch.dtype) and "device" not in kwargs)


def _filling(original: Any, name: str) -> Any:
    """copy_: into a tensor that exists."""

    def call(self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        if _idle() or not isinstance(src, Tensor):
            return original(self, src, *args, **kwargs)
        here = copies.place(self)
        if copies.place(src) == here:
            site = "" if here in ("", copies.HOST) else _own_line(sys._getframe(1))
            if not site:
                return original(self, src, *args, **kwargs)
            result, start, end, marks = _inside(original, (self, src, *args), kwargs, lambda: "D2D")
            _tell_within(self, name, here, site, (start, end), marks)
            return result
        result, start, end, marks = _inside(original, (self, src, *args), kwargs, lambda: _way(src, self, name))
        _tell(src, self, name, args, kwargs, (start, end), marks, sys._getframe(1))
        return result

    return call


def _making(original: Any, name: str) -> Any:
    """tensor, as_tensor, asarray, new_tensor: a tensor of what the host holds."""
    holder = int(name == "new_tensor")

    def call(*args: Any, **kwargs: Any) -> Any:
        if _idle():
            return original(*args, **kwargs)
        data = args[holder] if len(args) > holder else kwargs.get("data", kwargs.get("obj"))
        way = (lambda: copies.direction(_from(data), copies.where(kwargs["device"]))) if "device" in kwargs else None
        result, start, end, marks = _inside(original, args, kwargs, way)
        _tell(data, result, name, (), {}, (start, end), marks, sys._getframe(1))
        return result

    return call


def _indexing(original: Any, name: str) -> Any:
    """t[index] and t[index] = value."""

    def call(self: Any, index: Any, *value: Any) -> Any:
        if indexing.plain(index) and not (value and isinstance(value[0], Tensor)):
            return original(self, index, *value)
        if _idle() or copies.place(self) in ("", copies.HOST):
            return original(self, index, *value)
        result, start, end, marks = _inside(original, (self, index, *value), {}, lambda: _sends(index, value))
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
            _tell_index(self, index, value, (start, end), marks, sys._getframe(1))
        return result

    return call


# -- which way, before it is gone


def bound(name: str, args: Any, kwargs: Any) -> str:
    """Which way to, cuda, xpu, cpu and pin_memory send their tensor, by what they were given; "" for a cast."""
    given = (*args[1:2], *(kwargs[key] for key in ("device", "other") if key in kwargs))
    if name == "pin_memory":
        return copies.PIN
    if name == "cpu":
        target = copies.HOST
    elif name != "to":
        target = copies.where(name if not given or given[0] is None else given[0])
    else:
        others = [each for each in given if each is not None and not isinstance(each, torch.dtype)]
        if not others:
            return ""
        target = copies.place(others[0]) if isinstance(others[0], Tensor) else copies.where(others[0])
    return copies.direction(copies.place(args[0]), target)


def _from(data: Any) -> str:
    return copies.place(data) if isinstance(data, Tensor) else copies.HOST


def _sends(index: Any, value: tuple[Any, ...]) -> str:
    return "H2D" if indexing.sent(index) + (indexing.sent(value) if value else 0) else ""


# -- telling


def _tell(
    source: Any, target: Tensor, how: str, args: Any, kwargs: Any, times: tuple[int, int], marks: Marks,
    frame: FrameType,
) -> None:  # fmt: skip
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        way = _way(source, target, how)
        asked = sites.asked(frame) if way else None
        if asked is None:
            return
        non_blocking = bool(kwargs.get("non_blocking", next((a for a in args if isinstance(a, bool)), False)))
        copy = _copy(way, source, target, how, asked[0], times, non_blocking)
        _hand_on(copy, marks)
        if way == "D2H" and copy.blocking:
            reads.told(how.strip("_"), *asked, ns=copy.end - copy.start, whole=target.dim() > 0)
        if copy.differentiable:
            _follow(source, target, copy)


def _own_line(frame: FrameType) -> str:
    """The line of the script that copies by itself; "" where torch or we do."""
    with contextlib.suppress(Exception):
        asked = sites.asked(frame)
        return asked[0] if asked is not None and asked[1] else ""
    return ""


def _tell_within(target: Tensor, how: str, device: str, site: str, times: tuple[int, int], marks: Marks) -> None:
    """A copy from one part of a device's memory to another; its gradient needs none."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunction():
        size = target.numel() * target.element_size()
        _hand_on(Copy("D2D", size, how, site, *times, blocking=False, device=device, within=True), marks)


def _way(source: Any, target: Tensor, how: str) -> str:
    if how == "pin_memory":
        return copies.PIN
    return copies.direction(_from(source), copies.place(target))


def _copy(
    way: str, source: Any, target: Tensor, how: str, site: str, times: tuple[int, int], non_blocking: bool
) -> Copy:
    tensor = isinstance(source, Tensor)
    pinned = way == copies.PIN or (tensor and _pinned(target if way == "D2H" else source, way))
    straight = tensor and copies.straight(way, source, target)
    return Copy(
        way, _size(way, source if tensor else target, target, non_blocking), how, site, *times, pinned, non_blocking,
        copies.blocks(way, pinned=pinned, non_blocking=non_blocking, straight=straight),
        copies.place(source if way == "D2H" else target),
        tensor and target.requires_grad and source.requires_grad,
    )  # fmt: skip


def _size(way: str, source: Tensor, target: Tensor, non_blocking: bool) -> int:
    items = source.element_size(), target.element_size()
    return copies.moved(way, target.numel(), *items, non_blocking=non_blocking)


def _pinned(tensor: Tensor, way: str) -> bool | None:
    """Whether the host's side is pinned; None where asking would be an operation of the user's."""
    if way == "D2D":
        return False
    return None if hands_off() else bool(tensor.is_pinned())


def _tell_index(
    tensor: Tensor, index: Any, value: tuple[Any, ...], times: tuple[int, int], marks: Marks, frame: FrameType
) -> None:
    asked = sites.asked(frame)
    if asked is None:
        return
    waits = indexing.waits_to_store(index, value[0]) if value else indexing.masked(index)
    if waits:
        reads.told("mask", *asked, ns=times[1] - times[0], whole=True)
    size = indexing.sent(index) + (indexing.sent(value) if value else 0)
    if size:
        _hand_on(Copy("H2D", size, "index", asked[0], *times, device=copies.place(tensor)), marks)


def _hand_on(copy: Copy, marks: Marks) -> None:
    for listener, mark in marks:
        if listener in _listeners:
            listener.copied(copy, mark)


# -- what goes back


def _follow(source: Tensor, target: Tensor, copy: Copy) -> None:
    """The gradient of a copy is a copy the other way, which blocks: told when it is made."""
    node = target.grad_fn
    if node is None:
        return
    way, size = copies.back(copy.direction), _size(copy.direction, source, target, False)
    began: list[tuple[int, Marks]] = []

    def before(_gradients: Any) -> None:
        began.append((now(), _announced(lambda: way, timed=False)))

    def after(_made: Any, _given: Any) -> None:
        if not began:
            return
        start, marks = began.pop()
        _queued(marks)
        with contextlib.suppress(Exception):
            _hand_on(
                copy._replace(
                    direction=way, bytes=size, how="backward", start=start, end=now(), pinned=False,
                    non_blocking=False, blocking=way != "D2D", differentiable=False,
                ),
                marks,
            )  # fmt: skip

    node.register_prehook(before)
    node.register_hook(after)


_swap = Swap([
    (Tensor, ("to", "cuda", "xpu", "cpu", "pin_memory"), _moving),
    (Tensor, ("copy_",), _filling),
    (Tensor, ("new_tensor",), _making),
    (Tensor, ("__getitem__", "__setitem__"), _indexing),
    (torch, ("tensor", "as_tensor", "asarray"), _making),
])  # fmt: skip
