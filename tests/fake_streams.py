"""Streams, events and pinned memory without a device: what a script does with them, told to the observer.

Tensors on the device are meta tensors, which have storages and no data. A copy from one to the host does nothing.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from brickprof.capture.pending.observer import Observer
from brickprof.capture.pending.races import SUSPICIONS
from brickprof.capture.pending.watch import Eye, _reading, _taking, put
from brickprof.capture.taps.triton_arguments import Launch

DEFAULT = -1
tl: Any = None


def touching(x, y, out, which):
    tl.store(out, tl.load(x) + tl.load(y))


def choosing(x, y, out, which):
    tl.store(out, tl.load(x if which == 0 else y))


class FakeMachine:
    def __init__(self) -> None:
        self.current = DEFAULT
        self.external: set[int] = set()
        self.page_locked: set[int] = set()
        self.recording = False
        self.bases: dict[int, int] = {}

    def on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.is_meta

    def device(self, tensor: torch.Tensor) -> int:
        return 0

    def stream(self, device: int) -> int:
        return self.current

    def default(self, stream: int) -> bool:
        return stream == DEFAULT

    def blocking(self, stream: int) -> bool:
        return stream in self.external

    def pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.page_locked

    def capturing(self) -> bool:
        return self.recording

    def base(self, tensor: torch.Tensor) -> int:
        return self.bases.get(tensor.untyped_storage()._cdata, 0)

    def numbered(self, handle: int) -> int:
        return handle

    def handed(self, stream: Any) -> int:
        return int(stream)

    def current_device(self) -> int:
        return 0


class Gpu:
    """A script's view of a GPU."""

    def __init__(self) -> None:
        self.machine = FakeMachine()
        self.told: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self.observer = Observer(self.machine, self.told.append, self.failures.append)
        self._events = 100

    @contextlib.contextmanager
    def on(self) -> Iterator[Gpu]:
        undo = [
            put(torch.Tensor, "numpy", lambda original: _taking(self.observer, "numpy", original)),
            put(torch.Tensor, "tolist", lambda original: _reading(self.observer, "tolist", original)),
        ]
        try:
            with Eye(self.observer):
                yield self
        finally:
            for each in undo:
                each()
            self.observer.finish()
        assert not self.failures, self.failures

    # -- memory

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.ones(*shape, device="meta")

    def pinned(self, *shape: int) -> torch.Tensor:
        made = torch.zeros(*shape)
        self.machine.page_locked.add(made.untyped_storage()._cdata)
        return made

    def to_host(self, host: torch.Tensor, source: torch.Tensor, non_blocking: bool = True) -> None:
        """``host.copy_(source)``: a meta tensor has nothing to copy, so only the observer hears of it."""
        args = (host, source, non_blocking)
        launch = self.observer.before(torch.ops.aten.copy_.default, args, {})
        if launch is not None:
            self.observer.after(launch, args, {}, host)

    def does(self, operation: Any, *args: Any, **kwargs: Any) -> None:
        """An operation whose result depends on data, which meta tensors have none of."""
        launch = self.observer.before(operation, args, kwargs)
        if launch is not None:
            self.observer.after(launch, args, kwargs, None)

    def kernel(self, *args: Any, source: Any = touching, **kwargs: Any) -> None:
        """A Triton kernel of the user's, which does what ``source`` says."""
        names = list(inspect.signature(source).parameters)
        made = SimpleNamespace(__name__="mine", fn=source, arg_names=names)
        self.observer.kernel_launched(Launch(made, print, args, kwargs, None))

    def to_device(self, target: torch.Tensor, host: torch.Tensor, non_blocking: bool = True) -> None:
        target.copy_(host, non_blocking=non_blocking)

    # -- streams and events

    @contextlib.contextmanager
    def stream(self, number: int) -> Iterator[None]:
        before, self.machine.current = self.machine.current, number
        try:
            yield
        finally:
            self.machine.current = before

    def event(self, stream: int | None = None) -> int:
        self._events += 1
        self.record(self._events, stream)
        return self._events

    def record(self, event: int, stream: int | None = None) -> None:
        self.observer.event_recorded(event, self.machine.current if stream is None else stream)

    def wait(self, stream: int, event: int) -> None:
        self.observer.event_waited(event, stream)

    def wait_stream(self, stream: int, other: int) -> None:
        self.wait(stream, self.event(other))

    def synchronize(self, stream: int | None = None) -> None:
        if stream is None:
            self.observer.device_done()
        else:
            self.observer.stream_done(stream)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        self.machine.recording = True
        try:
            yield
        finally:
            self.machine.recording = False

    # -- what was found

    @property
    def causes(self) -> list[str]:
        return [fields["cause"] for fields in self.told if fields["count"] == 1 and fields["how"] not in SUSPICIONS]
