"""The observer's eyes: a dispatch mode, torch's GPU trace, and the few methods that neither of them sees.

Enters: a session that wants it. Leaves: calls of the ``Observer``. The mode goes on the stack only where it is empty,
so that a mode of the user's is never taken off in place of ours, and comes off where it is on top; else it sleeps.

torch's trace tells of every event and wait, those that autograd makes by itself among them. It cannot be switched off
again, but without anybody listening it does nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brickprof.capture.pending import bare, sealed
from brickprof.capture.pending.machine import Cuda
from brickprof.capture.pending.observer import Charge, Observer
from brickprof.capture.pending.races import Tell
from brickprof.capture.taps import triton_arguments
from brickprof.capture.taps.swap import Like

_plain_dispatch = torch._C._disabled_torch_dispatch_impl
_READS = ("tolist", "__repr__", "__reduce_ex__")
_TRACED = {
    "EventRecordCallbacks": "event_recorded", "EventWaitCallbacks": "event_waited",
    "EventDeletionCallbacks": "event_deleted", "EventSynchronizationCallbacks": "event_done",
    "StreamSynchronizationCallbacks": "stream_done", "DeviceSynchronizationCallbacks": "device_done",
}  # fmt: skip


class Eye(TorchDispatchMode):
    supports_higher_order_operators = True
    brickprofs = True
    """Says that this mode is none of the user's."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        observer = self.observer
        if not observer.awake or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if any(kind.__torch_dispatch__ is not _plain_dispatch for kind in types):
            return NotImplemented  # a subclass goes first: what it does inside is seen
        launch = observer.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if launch is not None:
            observer.after(launch, args, kwargs, result)
        return result


class Watch:
    """One observer with its eyes. A child that is forked off meanwhile sees nothing: it has no device, and a loader's
    worker would pay for each of its operations."""

    def __init__(self, tell: Tell, failed: Callable[[Exception], None], charge: Charge = lambda _ns: None) -> None:
        self._tell = tell
        self._failed = failed
        self._charge = charge
        self._undo: list[Callable[[], None]] = []
        self._eye: Eye | None = None
        self._hears_kernels = False
        self.observer: Observer | None = None

    def start(self, *, ready: bool = False) -> bool:
        """Begins, if CUDA is there and no mode of the user's is on; whether it has begun."""
        if self.observer is not None:
            self._hear_kernels(self.observer)
            return True
        if not (ready or torch.cuda.is_initialized()) or torch._C._len_torch_dispatch_stack():
            return False
        observer = Observer(Cuda(), self._tell, self._failed, self._charge)
        try:
            for begin in (bare.let_import, functools.partial(listen, observer), functools.partial(wrap, observer)):
                self._undo += begin()
            self._hear_kernels(observer)
            self._eye = Eye(observer)
            self._eye.__enter__()  # type: ignore[no-untyped-call]
        except Exception:  # whole or not at all
            observer.awake = False
            self._put_back()
            raise
        self.observer = observer
        _watching.add(self)
        return True

    def _hear_kernels(self, observer: Observer) -> None:
        """Triton may be imported at any time, by the script or by torch."""
        if not self._hears_kernels and triton_arguments.hear(observer.kernel_launched):
            self._hears_kernels = True
            self._undo.append(functools.partial(triton_arguments.unhear, observer.kernel_launched))

    def stop(self) -> None:
        observer, self.observer = self.observer, None
        if observer is None:
            return
        observer.finish()
        observer.awake = False
        _watching.discard(self)
        self._put_back()

    def _put_back(self) -> None:
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()
        self._close_eye()

    def _close_eye(self) -> None:
        depth = torch._C._len_torch_dispatch_stack()
        if self._eye is not None and depth and torch._C._get_dispatch_stack_at(depth - 1) is self._eye:
            self._eye.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def forked(self) -> None:
        """In a child: what was replaced hands on, the mode is gone where it is on top."""
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.awake = False
        with contextlib.suppress(Exception):
            self._close_eye()


_watching: weakref.WeakSet[Watch] = weakref.WeakSet()


def _after_fork() -> None:
    for watch in list(_watching):
        watch.forked()
    _watching.clear()


os.register_at_fork(after_in_child=_after_fork)


def listen(observer: Observer) -> list[Callable[[], None]]:
    """To torch's trace; how to stop it."""
    from torch.cuda import _gpu_trace

    torch._C._activate_gpu_trace()
    registries = {signal: getattr(_gpu_trace, registry).callback_list for registry, signal in _TRACED.items()}
    undo: list[Callable[[], None]] = []
    for signal, heard in registries.items():
        callback = getattr(observer, signal)
        heard.append(callback)
        undo.append(functools.partial(_without, heard, callback))
    return undo


def _without(heard: list[Any], callback: Any) -> None:
    with contextlib.suppress(ValueError):
        heard.remove(callback)


# -- methods


def wrap(observer: Observer) -> list[Callable[[], None]]:
    """Wraps what is neither dispatched nor traced, whole or not at all; how to undo it."""
    about = functools.partial
    event = about(_asking, observer.event_done, observer.event_not_done, _event)
    stream = about(_asking, observer.stream_done, observer.stream_not_done, _stream)
    plan: list[tuple[Any, str, Callable[[Any], Any]]] = [
        *((torch.Tensor, name, about(_reading, observer, name)) for name in _READS),
        (torch.Tensor, "numpy", about(_taking, observer, "numpy")),
        (torch.Tensor, "__dlpack__", about(_taking, observer, "__dlpack__")),
        (torch.cuda.Event, "query", event), (torch.cuda.Event, "elapsed_time", about(_measuring, observer, _event)),
        (torch.cuda.Stream, "query", stream), (torch.cuda.CUDAGraph, "replay", about(_replaying, observer)),
        *((owner, "empty_cache", about(_emptying, observer)) for owner in (torch.cuda, torch.cuda.memory)),
    ]  # fmt: skip
    undo: list[Callable[[], None]] = []
    try:
        for owner, name, make in plan:
            undo.append(put(owner, name, make))
        return [*undo, *wrap_any_device(observer)]
    except Exception:
        for each in reversed(undo):
            each()
        raise


def wrap_any_device(observer: Observer) -> list[Callable[[], None]]:
    """``torch.Event`` and ``torch.Stream``, of ``torch.accelerator``: records and waits of theirs are traced, questions
    are not. Where they cannot be heard, whoever asked until the answer was yes looks like one that never waited."""
    event = functools.partial(_asking, observer.event_done, observer.event_not_done, _any_event)
    measured = functools.partial(_measuring, observer, _any_event)
    stream = functools.partial(
        _asking, observer.stream_done, observer.stream_not_done, functools.partial(_any_stream, observer)
    )
    undo = [
        sealed.put(torch.Event, "query", event), sealed.put(torch.Event, "elapsed_time", measured),
        sealed.put(torch.Stream, "query", stream),
    ]  # fmt: skip
    observer.hears_questions = all(each is not None for each in undo)
    return [each for each in undo if each is not None]


def put(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replaces ``owner.name``; how to put back what was there, or nothing where it was inherited."""
    own, original = name in owner.__dict__, getattr(owner, name)
    wrapper = make(original)
    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(wrapper, original)
    if owner is torch.Tensor:
        wrapper = Like(wrapper, original)
    setattr(owner, name, wrapper)

    def undo() -> None:
        if owner.__dict__.get(name) is not wrapper:
            return  # somebody else has wrapped us since
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

    return undo


def _reading(observer: Observer, name: str, original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            observer.host_reads(self, name)
        return original(self, *args, **kwargs)

    return call


def _taking(observer: Observer, name: str, original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            observer.host_takes(self, name, result if name == "numpy" else None)
        return result

    return call


def _asking(done: Callable[[int], None], not_done: Callable[[int], None], handle: Any, original: Any) -> Any:
    def query(self: Any) -> Any:
        answer = original(self)
        with contextlib.suppress(Exception):
            asked = handle(self)
            if asked is not None:
                (done if answer else not_done)(asked)
        return answer

    return query


def _measuring(observer: Observer, handle: Any, original: Any) -> Any:
    def elapsed_time(self: Any, end_event: Any) -> Any:
        result = original(self, end_event)  # raises where either of them is not done
        with contextlib.suppress(Exception):
            observer.event_done(handle(self))
            observer.event_done(handle(end_event))
        return result

    return elapsed_time


def _emptying(observer: Observer, original: Any) -> Any:
    def call() -> Any:
        result = original()
        observer.memory_given_back()
        return result

    return call


def _replaying(observer: Observer, original: Any) -> Any:
    def replay(self: Any) -> Any:
        observer.graph_replayed()
        return original(self)

    return replay


def _event(event: Any) -> int:
    return int(event.cuda_event)


def _any_event(event: Any) -> int:
    return int(event.event_id)


def _stream(stream: Any) -> int:
    return int(stream.cuda_stream)


def _any_stream(observer: Observer, stream: Any) -> int | None:
    return observer.machine.handed(stream) if stream.device.type == "cuda" else None
