"""A Triton kernel as a brick: launched by keyword, its buffers measured first, its launches and binaries counted.

Enters: a ``triton.jit`` function and, for every launch, its arguments by name. Leaves: the launch, a count of
launches and of binaries (DIM-002), and a ``Launch`` for whoever listens.

    op ── Kernel.launch(grid, reads/writes, **arguments) ── extents fit? ── triton ── device
                                                              │ no            └── listener (name, shapes, bytes, flops)
                                                              └── BufferTooSmall (C-BUFSIZE-001), nothing launched

Arguments go by keyword only, so that M, N and K cannot be swapped (C-GEMMARGS-001). A kernel that cannot run
raises ``CannotLaunch``; torch takes its place only inside ``fallback()`` or with BRICKPROF_KERNELS=torch, and each
time it does, it is counted and told.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from brickprof.errors import BrickprofError
from brickprof.operators import queueing
from brickprof.operators.queueing import Queue, address, at_home, straight


class CannotLaunch(BrickprofError):
    """A kernel does not run on this device, or not on these arguments."""


class WrongArgument(CannotLaunch, ValueError):
    """An argument of an operation is not what it takes: which, what was expected, what was given."""

    def __init__(self, operation: str, argument: str, expected: str, given: object) -> None:
        super().__init__(f"{operation}: {argument} should be {expected}; given: {given}")


class BufferTooSmall(CannotLaunch, ValueError):
    """C-BUFSIZE-001: the kernel would reach past the end of a buffer."""


class Launch(NamedTuple):
    """One launch, as a listener hears of it."""

    kernel: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    bytes: int
    flops: int


class Listener(Protocol):
    """Whoever records launches. ``begin`` returns a function to call when the launch was queued."""

    def begin(self, launch: Launch) -> Callable[[], None] | None: ...

    def fell_back(self, operation: str, reason: str) -> None: ...


@dataclass
class Counts:
    launches: int = 0
    binaries: int = 0


_listener: Listener | None = None
_kernels: dict[str, Kernel] = {}
_fallbacks: dict[str, int] = {}
_falling_back = os.environ.get("BRICKPROF_KERNELS", "") == "torch"


def listen(listener: Listener | None) -> Listener | None:
    """Tells ``listener`` of every launch from now on; returns the one before."""
    global _listener
    before, _listener = _listener, listener
    return before


def counts() -> dict[str, Counts]:
    """Launches and binaries of every kernel of this process."""
    return {name: Counts(kernel.launches, kernel.binaries) for name, kernel in _kernels.items()}


def fallbacks() -> dict[str, int]:
    """How often torch took an operation's place."""
    return dict(_fallbacks)


@contextlib.contextmanager
def fallback(enabled: bool = True) -> Iterator[None]:
    """Inside it, what no kernel can run here is computed by its torch reference; counted and told, never silent."""
    global _falling_back
    before, _falling_back = _falling_back, enabled
    try:
        yield
    finally:
        _falling_back = before


@functools.cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on a CPU."""
    return any(kernel.interpreted for kernel in _kernels.values())


def takes_torch(operation: str, tensor: Tensor) -> bool:
    """Whether torch computes ``operation`` this time; CannotLaunch when nothing may."""
    if tensor.is_cuda or interpreted():
        return False
    reason = f"{operation} runs on CUDA devices and was given a tensor on {tensor.device}"
    if not _falling_back:
        raise CannotLaunch(
            f"{reason}; move it, or allow torch in its place: BRICKPROF_KERNELS=torch, "
            "or `with brickprof.operators.launch.fallback():`"
        )
    _fallbacks[operation] = _fallbacks.get(operation, 0) + 1
    if _listener is not None:
        with contextlib.suppress(Exception):
            _listener.fell_back(operation, reason)
    return True


def extent(tensor: Tensor) -> int:
    """Elements from the first to behind the last that ``tensor`` addresses."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


class Kernel:
    """One Triton function and all that is counted about it."""

    def __init__(self, function: Any, name: str) -> None:
        self.function = function
        self.name = name
        self.launches = 0
        self.heard = True
        self.interpreted = type(function).__name__ == "InterpretedFunction"
        self._queue = None if self.interpreted else Queue(function)
        _kernels[name] = self
        interpreted.cache_clear()

    @property
    def binaries(self) -> int:
        """How many variants were compiled and loaded, over all devices."""
        caches = getattr(self.function, "device_caches", None) or {}
        return sum(len(cache[0]) for cache in caches.values())

    def launch(
        self,
        grid: tuple[int, ...],
        *,
        needs: Mapping[str, int] | None = None,
        bytes_moved: int = 0,
        flops: int = 0,
        **arguments: Any,
    ) -> Any:
        """Queues the kernel and returns its binary. ``needs``: elements that it reaches into each buffer, checked
        before the launch."""
        for name, elements in (needs or {}).items():
            self._fits(name, arguments[name], elements)
        self.launches += self.heard
        ended = None
        if self.heard and _listener is not None:
            ended = self._told(arguments, bytes_moved, flops)
        with _at_home(next(iter(arguments.values()), None)):
            compiled = self._queue(grid, arguments, self.heard) if self._queue else self.function[grid](**arguments)
        if ended is not None:
            with contextlib.suppress(Exception):
                ended()
        return compiled

    def bind(self, grid: tuple[int, ...], **arguments: Any) -> Bound:
        """The same launch again and again with few arguments changed; skips what Triton works out each time."""
        return Bound(self, grid, arguments)

    def prepare(self, **arguments: Any) -> None:
        """Compiles, for the current device, what a launch with such ``arguments`` takes: the binary, and the launcher,
        for which Triton calls a C compiler the first time. Loads and launches nothing: that would break a graph that
        somebody captures meanwhile."""
        from triton.runtime import driver

        compiled = self.function.run(grid=(1,), warmup=True, **arguments)
        with contextlib.suppress(Exception):  # where launchers are made in another way, the first launch makes it
            driver.active.launcher_cls(compiled.src, compiled.metadata)

    def unheard(self) -> Kernel:
        """The same kernel for whoever watches a run: its launches are not the run's, so nobody counts or hears them."""
        found = copy.copy(self)
        found.heard = False
        return found

    def _fits(self, name: str, tensor: Tensor, elements: int) -> None:
        item = tensor.element_size()
        room = tensor.untyped_storage().nbytes() // item - tensor.storage_offset()
        if elements > room:
            raise BufferTooSmall(
                f"{self.name}: {name} holds {room} elements ({tuple(tensor.shape)}, {tensor.dtype}) "
                f"and the kernel reaches {elements}; nothing was launched (C-BUFSIZE-001)"
            )

    def _told(self, arguments: Mapping[str, Any], bytes_moved: int, flops: int) -> Callable[[], None] | None:
        tensors = {name: each for name, each in arguments.items() if isinstance(each, Tensor)}
        launch = Launch(
            self.name,
            {name: tuple(each.shape) for name, each in tensors.items()},
            {name: str(each.dtype).removeprefix("torch.") for name, each in tensors.items()},
            bytes_moved,
            flops,
        )
        try:
            return _listener.begin(launch) if _listener is not None else None
        except Exception:  # a listener is capture: it never breaks what it watches
            return None


def _at_home(argument: Any) -> contextlib.AbstractContextManager[Any]:
    """On the device of a launch's first argument, a tensor or a descriptor of one: Triton asks for the current one."""
    tensor = getattr(argument, "base", argument)
    index = tensor.device.index if isinstance(tensor, Tensor) and tensor.is_cuda else None
    if index is None or index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(index)


class Bound:
    """A launch whose sizes, types and constants are settled. Changed tensors must be aligned as the first were."""

    def __init__(self, brick: Kernel, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        self._brick = brick
        self._grid = grid
        self._whole = (*grid, 1, 1)[:3]
        self._arguments = arguments
        self._anchor = next(iter(arguments.values()), None)
        self._run: Any = None
        self._compiled: Any = None
        self._values: list[Any] = []
        self._places: dict[str, int] = {}
        self._tensors: frozenset[str] = frozenset()

    @property
    def settled(self) -> bool:
        """Whether it was launched before: from then on an address does for a tensor."""
        return self._run is not None

    def launch(self, **changed: Any) -> None:
        """Queues the kernel with ``changed`` in place of what was bound under these names."""
        heard = self._brick.heard and (_listener is not None or (queueing.attended and self._by_tensors(changed)))
        if self._run is None or heard:
            self._first(changed)
            return
        self._brick.launches += self._brick.heard
        for name, value in changed.items():
            self._values[self._places[name]] = address(value)
        with _at_home(self._anchor):
            self._run(self._whole, self._values)

    def function_of(self, *names: str) -> Callable[..., None]:
        """The launch, which was made before, as a function of the addresses under ``names``."""
        values, places, run, grid = list(self._values), [self._places[name] for name in names], self._run, self._whole
        brick, index = self._brick, self._anchor.device.index if isinstance(self._anchor, Tensor) else None
        behind = values[len(places) :] if places == list(range(len(places))) else None
        """What comes behind them, where they come first."""

        def launch(*addresses: int) -> None:
            brick.launches += brick.heard
            if behind is not None:
                given = [*addresses, *behind]
            else:
                given = values
                for place, value in zip(places, addresses, strict=True):
                    values[place] = value
            if index is None or index == current_device():
                run(grid, given)
                return
            with torch.cuda.device(index):
                run(grid, given)

        current_device = torch._C._cuda_getDevice if index is not None else int
        if behind is None or index is None or brick.heard:
            return launch
        return at_home(self._compiled, grid, behind, index, launch)

    def _by_tensors(self, changed: dict[str, Any]) -> bool:
        """Whether Triton can be called with them: an address in a tensor's place would be a number to it."""
        return not any(type(value) is int and name in self._tensors for name, value in changed.items())

    def _first(self, changed: dict[str, Any]) -> None:
        arguments = {**self._arguments, **changed}
        compiled = self._brick.launch(self._grid, **arguments)
        if compiled is None or self._run is not None:  # the interpreter compiles nothing
            return
        names = self._brick.function.arg_names
        self._values = [address(arguments[name]) for name in names]
        self._places = {name: place for place, name in enumerate(names)}
        self._tensors = frozenset(name for name, value in arguments.items() if isinstance(value, Tensor))
        self._run, self._compiled = straight(compiled), compiled


def kernel(name: str) -> Callable[[Any], Kernel]:
    """Above ``@triton.jit``: makes the function a brick called ``name``."""
    return lambda function: Kernel(function, name)


def multiprocessors(tensor: Tensor) -> int:
    """How many programs of a persistent kernel are resident on the device of ``tensor``."""
    if not tensor.is_cuda:
        return 4
    return _multiprocessors(tensor.device.index)


@functools.cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def wants(operation: str, argument: str, holds: bool, expected: str, given: object) -> None:
    """Raises ``WrongArgument`` unless ``holds``."""
    if not holds:
        raise WrongArgument(operation, argument, expected, given)


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
KIND = {dtype: place for place, dtype in enumerate(FLOATS)}
"""The place of each: what a kernel is told of a type."""


def floating(operation: str, **tensors: Tensor) -> torch.dtype:
    """Checks that all are of one floating type and on one device; the type."""
    first = next(iter(tensors.values()))
    if _alike(first, tensors):
        return first.dtype
    for name, tensor in tensors.items():
        wants(operation, name, isinstance(tensor, Tensor), "a tensor", type(tensor).__name__)
        wants(operation, name, tensor.dtype in FLOATS, "float32, bfloat16 or float16", tensor.dtype)
        wants(operation, name, tensor.dtype == first.dtype, f"{first.dtype}, as the others are", tensor.dtype)
        wants(operation, name, tensor.device == first.device, f"on {first.device}, as the others are", tensor.device)
    return first.dtype


def _alike(first: Tensor, tensors: Mapping[str, Tensor]) -> bool:
    """The same question without a word for an answer, which takes longer than the question."""
    return all(
        isinstance(each, Tensor)
        and each.dtype in FLOATS
        and each.dtype is first.dtype
        and (each is first or each.device == first.device)
        for each in tensors.values()
    )
