"""The observer's eyes: a dispatch mode, torch's GPU trace, and the few methods that neither of them sees.

Enters: a session that wants it. Leaves: calls of the ``Observer``. The mode goes on the stack only where it is empty,
so that a mode of the user's is never taken off in place of ours, and comes off where it is on top; else it sleeps.

torch's trace tells of every event and wait, those that autograd makes by itself among them. It cannot be switched off
again, but without anybody listening it does nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brickprof.capture.pending.machine import Cuda
from brickprof.capture.pending.observer import Charge, Observer
from brickprof.capture.pending.races import Tell

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
    def __init__(self, tell: Tell, failed: Callable[[Exception], None], charge: Charge = lambda _ns: None) -> None:
        self._tell = tell
        self._failed = failed
        self._charge = charge
        self._undo: list[Callable[[], None]] = []
        self._eye: Eye | None = None
        self.observer: Observer | None = None

    def start(self, *, ready: bool = False) -> bool:
        """Begins, if CUDA is there and no mode of the user's is on; whether it has begun."""
        if self.observer is not None:
            return True
        if not (ready or torch.cuda.is_initialized()) or torch._C._len_torch_dispatch_stack():
            return False
        observer = Observer(Cuda(), self._tell, self._failed, self._charge)
        self._undo = [*listen(observer), *wrap(observer)]
        self._eye = Eye(observer)
        self._eye.__enter__()  # type: ignore[no-untyped-call]
        self.observer = observer
        return True

    def stop(self) -> None:
        observer, self.observer = self.observer, None
        if observer is None:
            return
        observer.finish()
        observer.awake = False
        while self._undo:
            self._undo.pop()()
        depth = torch._C._len_torch_dispatch_stack()
        if self._eye is not None and depth and torch._C._get_dispatch_stack_at(depth - 1) is self._eye:
            self._eye.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def listen(observer: Observer) -> list[Callable[[], None]]:
    """To torch's trace; how to stop it."""
    from torch.cuda import _gpu_trace

    torch._C._activate_gpu_trace()
    undo: list[Callable[[], None]] = []
    for registry, signal in _TRACED.items():
        heard: list[Any] = getattr(_gpu_trace, registry).callback_list
        callback = getattr(observer, signal)
        heard.append(callback)
        undo.append(functools.partial(_without, heard, callback))
    return undo


def _without(heard: list[Any], callback: Any) -> None:
    with contextlib.suppress(ValueError):
        heard.remove(callback)


# -- methods


def wrap(observer: Observer) -> list[Callable[[], None]]:
    """Wraps what is neither dispatched nor traced; how to undo it."""
    undo = [put(torch.Tensor, name, functools.partial(_reading, observer, name)) for name in _READS]
    undo.append(put(torch.Tensor, "numpy", functools.partial(_taking, observer, "numpy")))
    undo.append(put(torch.Tensor, "__dlpack__", functools.partial(_taking, observer, "__dlpack__")))
    event, stream = torch.cuda.Event, torch.cuda.Stream
    undo.append(put(event, "query", functools.partial(_asking, observer.event_done, observer.event_not_done, _event)))
    undo.append(put(event, "elapsed_time", functools.partial(_measuring, observer)))
    undo.append(
        put(stream, "query", functools.partial(_asking, observer.stream_done, observer.stream_not_done, _stream))
    )
    for owner in (torch.cuda, torch.cuda.memory):
        undo.append(put(owner, "empty_cache", functools.partial(_emptying, observer)))
    return undo


def put(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replaces ``owner.name``; how to put back what was there, or nothing where it was inherited."""
    own, original = name in owner.__dict__, getattr(owner, name)
    wrapper = make(original)
    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(wrapper, original)
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
    def call(self: Any) -> Any:
        answer = original(self)
        (done if answer else not_done)(handle(self))
        return answer

    return call


def _measuring(observer: Observer, original: Any) -> Any:
    def call(self: Any, end_event: Any) -> Any:
        result = original(self, end_event)  # raises where either of them is not done
        observer.event_done(_event(self))
        observer.event_done(_event(end_event))
        return result

    return call


def _emptying(observer: Observer, original: Any) -> Any:
    def call() -> Any:
        result = original()
        observer.memory_given_back()
        return result

    return call


def _event(event: Any) -> int:
    return int(event.cuda_event)


def _stream(stream: Any) -> int:
    return int(stream.cuda_stream)
