"""From operations, events and host reads to the ledger.

Enters: operations before and after they run, torch's trace of events and syncs, values that the host takes. Leaves:
uses, launches and waits in the ledger and its clocks. It never raises: what goes wrong is counted, and ends the
observation when it goes on.

While a CUDA graph is captured nothing runs, so nothing is noted. Operations of ours are not the user's, and pass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from brickprof.capture.pending import operations, reaches, stacks
from brickprof.capture.pending.aliases import Aliases
from brickprof.capture.pending.clocks import HOST, Clocks
from brickprof.capture.pending.contents import Contents
from brickprof.capture.pending.ledger import Ledger, Memory
from brickprof.capture.pending.machine import Machine
from brickprof.capture.pending.operations import Plan
from brickprof.capture.pending.races import Races, Tell, Use
from brickprof.capture.pending.regions import Region, region
from brickprof.capture.taps import triton_arguments

_FAILURES = 3
_counter = time.perf_counter_ns
Charge = Callable[[int], None]
Site = stacks.Site
Launch = tuple[Plan, Site, int, int]
"""A plan, the user's lines, the stream and the number; without a device yet, both are 0."""


class Observer:
    def __init__(
        self, machine: Machine, tell: Tell, failed: Callable[[Exception], None], charge: Charge = lambda _ns: None
    ) -> None:
        self.machine = machine
        self.clocks = Clocks()
        self.races = Races(tell, stacks.describe, self.name)
        self.ledger = Ledger(self.clocks, self.races.add)
        self.aliases = Aliases(self.ledger)
        self.contents = Contents(self.ledger)
        self.awake = True
        self.copies = 0
        """Copies between pinned memory and the device that nobody waited for in the call itself."""
        self.kernels = 0
        """Launches of Triton kernels by the user, whose tensors are known and what is done to them is not."""
        self.astray = 0
        """Those of them that were given memory of the host."""
        self.replays = 0
        """Of CUDA graphs, whose inside is not seen."""
        self.hears_questions = True
        """Whether every ``query`` of an event or a stream is heard."""
        self.thread = threading.get_ident()
        self._failed = failed
        self._charge = charge
        self._failures = 0
        self._lock = threading.RLock()
        self._names: dict[int, str] = {HOST: "the host"}

    @property
    def broken(self) -> bool:
        return self._failures >= _FAILURES

    # -- guarded entrances

    def guarded(self, act: Callable[..., Any], *args: Any) -> Any:
        """Calls ``act`` with the lines of the user, unless it is we who act, or a graph is captured."""
        if not self.awake:
            return None
        start = _counter()
        try:
            site = stacks.here(self.thread)
            if site is None or self.machine.capturing():
                return None
            with self._lock, torch._C.DisableTorchFunction():
                self.aliases.settle()
                return act(site, *args)
        except Exception as error:
            self._failures += 1
            self.awake = self.awake and not self.broken
            self._failed(error)
            return None
        finally:
            self._charge(_counter() - start)

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = operations.plan(func)
        return None if made.skipped else self.guarded(self._before, made, args, kwargs)

    def after(self, launch: Launch, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.guarded(self._after, launch, args, kwargs, result)

    # -- operations

    def _before(self, site: Site, made: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        if made.records:
            self._recorded(args)
            return made, site, 0, 0
        touched = list(operations.uses(made, args, kwargs))
        device = next((tensor for tensor, _ in touched if self.machine.on_device(tensor)), None)
        stream, number = (0, 0) if device is None else self._launch(self.machine.device(device))
        apart = self._crossing(made, args, kwargs)
        for tensor, write in touched:
            if self.machine.on_device(tensor):
                self._use(tensor, Use(stream, made.name, write, _region(tensor), site, number))
            elif id(tensor) not in apart:
                self._on_host(tensor, made.name, write, site)
        return made, site, stream, number

    def _after(self, _: Site, launch: Launch, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        made, site, stream, number = launch
        for tensor in operations.tensors(result):
            if self.machine.on_device(tensor) and self.ledger.memory(_key(tensor)) is None:
                if _key(tensor) in map(_key, operations.tensors([*args, *kwargs.values()])):
                    continue  # a view of something that was there before us
                if not number:
                    stream, number = self._launch(self.machine.device(tensor))
                self._meet(tensor, home=stream, fresh=True)
                if not made.allocates_only:
                    self._use(tensor, Use(stream, made.name, True, _region(tensor), site, number))
        if made.copies and number:
            self._copied((made, site, stream, number), args, kwargs, result)
        elif number and operations.waits(made, args, kwargs, self.machine.on_device):
            self.clocks.stream_done(stream, site)

    def _launch(self, device: int) -> tuple[int, int]:
        stream = self.machine.stream(device)
        self._known(stream, device)
        return stream, self.clocks.launch(stream)

    def _known(self, stream: int, device: int) -> None:
        if not self.clocks.met(stream):
            default, blocking = self.machine.default(stream), self.machine.blocking(stream)
            self.clocks.meet(stream, device, default=default, blocking=blocking)

    def _recorded(self, args: tuple[Any, ...]) -> None:
        memory = self.ledger.memory(_key(args[0])) if args[0].layout is torch.strided else None
        if memory is not None:
            memory.safe.add(self.machine.handed(args[1]))

    # -- copies between the host and the device

    def _crossing(self, made: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """The host's tensors of a copy to or from a device: they are dealt with when it has been made."""
        if not made.copies:
            return set()
        if made.name == "aten::_to_copy":
            return {id(each) for each in args[:1] if torch.device(kwargs.get("device") or "cpu").type != "cpu"}
        return {
            id(each)
            for pair in operations.copied(made, args, kwargs, None)
            if self.machine.on_device(pair[0]) != self.machine.on_device(pair[1])
            for each in pair
        }

    def _copied(self, launch: Launch, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        made, site, stream, number = launch
        waits = not operations.non_blocking(made, args, kwargs)
        for target, source in operations.copied(made, args, kwargs, result):
            to_host = not self.machine.on_device(target)
            if to_host == (not self.machine.on_device(source)):
                continue
            host, other = (target, source) if to_host else (source, target)
            if waits or not self._straight(host, other):
                self._staged(host, launch, to_host=to_host, waits=waits)
                continue
            self.copies += 1
            memory = self._meet(host, pinned=True)
            use = Use(stream, made.name, to_host, _region(host), site, number)
            if to_host:
                memory.prints.clear()
                self.aliases.overwritten(memory, use)
            else:
                self.contents.sent(memory, use, host.data_ptr())
            self._use(host, use)

    def _straight(self, host: torch.Tensor, other: torch.Tensor) -> bool:
        return operations.direct(host, other) and self.machine.pinned(host)

    def _staged(self, host: torch.Tensor, launch: Launch, *, to_host: bool, waits: bool) -> None:
        """Torch, or the driver, has read or written the host's side before it returned."""
        made, site, stream, _ = launch
        if waits or to_host:
            self.clocks.stream_done(stream, site)
        self._on_host(host, made.name, to_host, site)

    # -- what passes the dispatcher

    def kernel_launched(self, launch: triton_arguments.Launch) -> None:
        """A Triton kernel is about to be put on the current stream of the current device."""
        self.guarded(self._kernel, launch)

    def _kernel(self, site: Site, launch: triton_arguments.Launch) -> None:
        self.kernels += 1
        stream, number = self._launch(self.machine.current_device())
        name = str(getattr(launch.function, "__name__", "triton"))
        names, reached = getattr(launch.function, "arg_names", ()), reaches.reached(launch.function)
        named = [*zip_longest(names[: len(launch.args)], launch.args), *launch.kwargs.items()]
        given = [(each, tensor) for each, value in named for tensor in _handed(value)]
        on_device = [(each, tensor) for each, tensor in given if self.machine.on_device(tensor)]
        self.astray += len(on_device) < len(given)
        for each, tensor in on_device:
            use = Use(stream, name, False, _region(tensor), site, number, certain=False, touched=each in reached)
            self._use(tensor, use)

    def graph_replayed(self) -> None:
        if self.awake:
            self.replays += 1

    # -- memory

    def _meet(
        self, tensor: torch.Tensor, *, home: int | None = None, pinned: bool = False, fresh: bool = False
    ) -> Memory:
        key, base = _key(tensor), self.machine.base(tensor)
        memory = self.ledger.memory(key)
        if memory is not None and memory.base == base and not memory.expired():
            return memory
        storage = tensor.untyped_storage()
        made = Memory(StorageWeakRef(storage).expired, base, storage.nbytes(), home, pinned)
        return self.ledger.meet(key, made, fresh=fresh)

    def _use(self, tensor: torch.Tensor, use: Use) -> None:
        key = _key(tensor)
        memory = self.ledger.memory(key)
        if memory is None or memory.base != self.machine.base(tensor):
            memory = self._meet(tensor)
        if threading.get_ident() != self.thread:
            memory.safe.add(use.agent)  # autograd calls record_stream by itself, where nobody sees it
        self.ledger.use(key, use)

    def _on_host(self, tensor: torch.Tensor, op: str, write: bool, site: Site) -> None:
        key = _key(tensor)
        if self.ledger.memory(key) is not None:
            self.ledger.use(key, Use(HOST, op, write, _region(tensor), site))

    # -- the host

    def host_reads(self, tensor: torch.Tensor, op: str) -> None:
        self.guarded(self._reads, tensor, op)

    def _reads(self, site: Site, tensor: torch.Tensor, op: str) -> None:
        if _plain(tensor):
            self._on_host(tensor, op, False, site)

    def host_takes(self, tensor: torch.Tensor, op: str, holder: Any) -> None:
        """The host got a view of the tensor that torch knows nothing of."""
        self.guarded(self._takes, tensor, op, holder)

    def _takes(self, site: Site, tensor: torch.Tensor, op: str, holder: Any) -> None:
        if not _plain(tensor):
            return
        if self.ledger.memory(_key(tensor)) is None and not self.machine.pinned(tensor):
            return
        memory = self._meet(tensor, pinned=True)
        self.aliases.taken(memory, Use(HOST, op, False, _region(tensor), site), holder, tensor.dim())

    # -- events and waits

    def event_recorded(self, event: int, handle: int) -> None:
        self.guarded(lambda site: self.clocks.record(event, self._stream(handle)))

    def event_deleted(self, event: int) -> None:
        self.clocks.forget(event)  # from any thread, at any time: not even a lock is taken

    def event_waited(self, event: int, handle: int) -> None:
        self.guarded(lambda site: self.clocks.wait(self._stream(handle), event, site))

    def event_done(self, event: int) -> None:
        self.guarded(lambda site: self.clocks.event_done(event, site))

    def event_not_done(self, event: int) -> None:
        self.guarded(lambda site: self.clocks.event_not_done(event, site))

    def stream_done(self, handle: int) -> None:
        self.guarded(lambda site: self.clocks.stream_done(self._stream(handle), site))

    def stream_not_done(self, handle: int) -> None:
        self.guarded(lambda site: self.clocks.stream_not_done(self._stream(handle), site))

    def device_done(self) -> None:
        self.guarded(lambda site: self.clocks.device_done(self.machine.current_device(), site))

    def memory_given_back(self) -> None:
        self.guarded(lambda site: self.ledger.forget_freed())

    def _stream(self, handle: int) -> int:
        stream = self.machine.numbered(handle)
        self._known(stream, self.machine.current_device())
        return stream

    # -- words

    def name(self, agent: int) -> str:
        known = self._names.get(agent)
        if known is None:
            kind = "external stream" if self.machine.blocking(agent) else "side stream"
            others = sum(name.startswith(kind) for name in self._names.values())
            known = "the default stream" if self.machine.default(agent) else f"{kind} {others + 1}"
            self._names[agent] = known
        return known

    def finish(self) -> None:
        with self._lock:
            self.aliases.settle()
            self.races.finish()


def _handed(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument of a kernel; a descriptor's own."""
    return operations.tensors([value if isinstance(value, torch.Tensor) else getattr(value, "base", value)])


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _region(tensor: torch.Tensor) -> Region:
    return region(int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.element_size())


def _plain(tensor: torch.Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return tensor.layout is torch.strided and tensor.device.type == "cpu"
