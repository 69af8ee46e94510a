"""All statistics of a device's tensors in one launch, by the kernel of ``brickprof.kernels.statistics``.

Enters: tensors of a CUDA device, the same ones again and again under one purpose. Leaves: a table on that device, a row
a tensor (columns as the kernel names them), or None: on a host, for tensors that the kernel does not read, until it is
compiled, and where it cannot be. Then torch's foreach calls do what they can; that it is so, and why, is told once.

Compiling takes a second or two, once on a machine, and is done aside: the training does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from brickprof.capture import aside
from brickprof.capture.readback import Page
from brickprof.capture.surroundings import hands_off

SAMPLE = 1024
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_TIMED = 5
_MOST_FAILURES = 3
_counter = time.perf_counter_ns
Launch = Callable[[Sequence[torch.Tensor], int, memoryview], bool]
Tell = Callable[[str, dict[str, Any]], None]


class Table(NamedTuple):
    """Statistics on the device: ``values`` (tensors, columns); ``places`` says whose each row is, when reordered."""

    values: torch.Tensor
    places: list[int] | None

    def in_order(self, host: Any) -> Any:
        """The rows as the tensors were given."""
        if self.places is None:
            return host
        ordered = host.copy()
        ordered[self.places] = host
        return ordered


class _Timed:
    """Launches, each between two events."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        self._pairs.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        self._pairs[-1][0].record()

    def __exit__(self, *_: object) -> None:
        self._pairs[-1][1].record()

    def ns(self) -> float | None:
        """What they took the device; None while it is at it."""
        if not all(after.query() for _, after in self._pairs):
            return None
        return 1e6 * sum(float(before.elapsed_time(after)) for before, after in self._pairs)


class Fused:
    """What is compiled, and the tables of addresses of each purpose."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._kernels: Any = None
        self._ready: dict[tuple[torch.dtype, int], bool] = {}
        self._reason = ""
        self._told = False
        self._compiling: set[tuple[torch.dtype, int]] = set()
        self._failures: dict[str, int] = {}
        self._made: dict[tuple[str, torch.dtype, int], Any] = {}
        self._lone: dict[str, tuple[int, Any]] = {}
        """Purposes whose tensors were all of one type the last time: the stream, and what was made for them."""
        self._settled: dict[str, tuple[int | None, Any]] = {}
        """The same of those that are the gradients of the same parameters every time."""
        self._gathers: dict[int, Any] = {}
        """By device: nothing yet, what was compiled, what was made of it."""
        self._times: dict[str, list[Any]] = {}

    # -- the two launches

    def table(self, purpose: str, values: Sequence[torch.Tensor]) -> Table | None:
        """nan, inf, absmax, l2, mean, zeros, checksum, numel of every tensor."""
        return self._launched(purpose, values, lambda made, part: made(part))

    def again(self, purpose: str, values: Sequence[torch.Tensor], page: Page, stream: Any) -> bool:
        """The table of ``purpose`` straight into ``page``; False where the tensors are not of the sizes that they were
        the last time, or ``stream``, the current one, is another."""
        known = self._lone.get(purpose)
        if known is None:
            return False
        usual, made = known
        if stream.cuda_stream != usual:
            return False
        try:
            return bool(made.again(values, page.buffer, page.given))
        except (TypeError, RuntimeError, NotImplementedError):  # sparse, or without memory of its own
            return False

    def launch_of(self, purpose: str, values: Sequence[torch.Tensor], stream: Any, *, anew: bool) -> Launch | None:
        """The same as a function of a page, its room for addresses, and gradients of parameters that are those of
        ``values``, every one. None where the number of the current stream is not ``stream``, or there is none such.
        ``anew``: the last one has refused."""
        if anew or purpose not in self._settled:
            usual, made = self._lone.get(purpose, (None, None))
            self._settled[purpose] = usual, made.settled(values) if made is not None else None
        usual, launch = self._settled[purpose]
        found: Launch | None = launch if usual == stream else None
        return found

    def gather(self, device: int) -> Callable[[torch.Tensor], None] | None:
        """What fetches small tensors from ``device``; None until it is compiled, and where it cannot be."""
        found = self._gathers.get(device)
        if found is None and device not in self._gathers:
            self._gathers[device] = None
            aside.run(self._compile_gather, device, name="brickprof-compile")
        elif isinstance(found, type):
            found = self._gathers[device] = found(device)
        return found

    def samples(self, purpose: str, values: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Up to 1K values of every tensor, evenly spread: (tensors, 1024), NaN behind the last of a shorter one."""
        found = self._launched(purpose, values, lambda made, part: made.sample(part, SAMPLE))
        return None if found is None or found.places is not None else found.values

    def _launched(
        self, purpose: str, values: Sequence[torch.Tensor], launch: Callable[[Any, Sequence[torch.Tensor]], Any]
    ) -> Table | None:
        self._settled.pop(purpose, None)
        if self._failures.get(purpose, 0) >= _MOST_FAILURES:
            return None
        groups = self._groups(values)
        ready = [self._compiled(dtype, values[0].device.index) for dtype in groups or ()]  # all at once, side by side
        if groups is None or not all(ready):
            return None
        self._lone.pop(purpose, None)
        try:
            tables = [
                launch(self._statistics(purpose, dtype, values[places[0]]), [values[place] for place in places])
                for dtype, places in groups.items()
            ]
        except (ValueError, RuntimeError, NotImplementedError) as error:  # with gaps, sparse, or of another device
            self._lacks(str(error))
            self._failures[purpose] = self._failures.get(purpose, 0) + 1
            return None
        if len(tables) == 1:
            stream = int(torch.cuda.current_stream(values[0].device).cuda_stream)
            self._lone[purpose] = stream, self._made[purpose, values[0].dtype, stream]
            return Table(tables[0], None)
        return Table(torch.cat(tables), [place for places in groups.values() for place in places])

    def _groups(self, values: Sequence[torch.Tensor]) -> dict[torch.dtype, Sequence[int]] | None:
        if not values or not values[0].is_cuda:
            return None
        dtypes = [value.dtype for value in values]
        kinds = set(dtypes)
        if not kinds.issubset(_FLOATS):
            self._lacks(f"a tensor of {next(iter(kinds.difference(_FLOATS)))}")
            return None
        if len(kinds) == 1:
            return {dtypes[0]: range(len(dtypes))}
        return {kind: [place for place, dtype in enumerate(dtypes) if dtype is kind] for kind in kinds}

    def _statistics(self, purpose: str, dtype: torch.dtype, first: torch.Tensor) -> Any:
        key = purpose, dtype, int(torch.cuda.current_stream(first.device).cuda_stream)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._kernels.Statistics(heard=False)
        return found

    # -- what the device pays

    def settled(self, purpose: str) -> bool:
        """Whether it is known what a table of ``purpose`` takes the device."""
        return len(self._times.get(purpose, ())) >= _TIMED

    @property
    def coming(self) -> bool:
        """Whether a kernel is being compiled."""
        return bool(self._compiling)

    def timed_table(self, purpose: str, values: Sequence[torch.Tensor]) -> Table | None:
        """The same; the first few times every launch between two events, which are asked later."""
        times = self._times.setdefault(purpose, [])
        if len(times) >= _TIMED or hands_off():
            return self.table(purpose, values)
        timed = _Timed()
        found = self._launched(purpose, values, lambda made, part: made(part, timed))
        if found is not None:
            times.append(timed)
        return found

    def device_ns(self, purpose: str) -> float:
        """What one table takes the device; 0 while nobody knows. A device that waits for the host's next word is not
        at work, and events count that too: the shortest time is the truest."""
        times = self._times.get(purpose, [])
        for place, each in enumerate(times):
            if isinstance(each, _Timed) and (took := each.ns()) is not None:
                times[place] = took
        return min((each for each in times if isinstance(each, float)), default=0.0)

    # -- compiling

    def _compiled(self, dtype: torch.dtype, device: int) -> bool:
        ready = self._ready.get((dtype, device))
        if ready is None:
            self._ready[dtype, device] = False
            self._compiling.add((dtype, device))
            if not aside.run(self._compile, dtype, device, name="brickprof-compile"):
                self._compiling.clear()
                self._lacks("no thread to compile on")
        return bool(ready)

    def _compile(self, dtype: torch.dtype, device: int) -> None:
        try:
            from brickprof.kernels import statistics

            statistics.warm(dtype, device)
            self._kernels = statistics
            self._ready[dtype, device] = True
        except Exception as error:  # no triton, no compiler, a card that is too old
            self._lacks(f"{type(error).__name__}: {error}")
        finally:
            self._compiling.discard((dtype, device))

    def _compile_gather(self, device: int) -> None:
        try:
            from brickprof.kernels import _scalars

            _scalars.warm(device)
            self._gathers[device] = _scalars.Gather
        except Exception:  # no triton: single numbers are copied, as they were until now
            return

    def _lacks(self, reason: str) -> None:
        if not self._told:
            self._told = True
            fields = {"operation": "statistics", "reason": reason[:300], "instead": "torch's foreach calls"}
            self._tell("fallback", fields)
