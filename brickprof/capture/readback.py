"""Numbers from the device to the host, without ever waiting for the device.

Enters: small device tensors and what to do with them. Leaves: the same numbers on the host, handed over
at once for a CPU tensor and some steps later for a CUDA tensor, when its copy has finished by itself.
The copies go to pinned memory that is used again and again, by every session of the process, and is never given back:
torch records an event on a device when it takes pinned memory back, and on a device that has failed this ends the
process, with another exit code than its own. Nothing here blocks.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from brickprof.capture.surroundings import hands_off, recording
from brickprof.capture.tensors import on_host
from brickprof.clock import now

Done = Callable[[torch.Tensor], None]
Gather = Callable[[torch.Tensor], None]
"""Has a device fetch what a page asks for; see ``brickprof.kernels._scalars``."""
_MOST_CUT = 8
_FULL = range(64)
"""Shapes of pages that are kept as they were cut, and pages of each."""
_LONGEST = 256
_LONGEST_OF_ALL = 2048
"""A device that far behind gets no more to do for us; single numbers, losses among them, are the last to go."""
_SLOTS = 64
ROOM = 128
"""Numbers that are copied one by one into a page, and requests that a page has room for."""
_ENOUGH = 8
_ENOUGH_HELD = 32
_REQUESTS = 3 * ROOM
_SMALL = 1024
"""Bytes."""
_LITTLE = 4096
"""Larger results are full statistics; smaller ones a norm or a sum per tensor."""
_when = itemgetter(0)


class Several(NamedTuple):
    """Whoever asks for one number after another: what is done with many of them at once, as long as all are as usual,
    and else with each."""

    usual: Callable[[list[float]], bool]
    together: Callable[[list[Any], list[float]], None]
    alone: Callable[[Any, float], None]


class Page(NamedTuple):
    """Memory that a device writes a table into, and what it is given for that."""

    buffer: torch.Tensor
    values: torch.Tensor
    given: Any
    """Room for a whole number a row, behind the table: an array."""
    room: memoryview
    """The same as bytes."""
    at: int
    """Its address."""


class Lane(Protocol):
    """The way from a device to the host: copies that finish by themselves, in the order of a stream."""

    def serves(self, tensor: torch.Tensor) -> bool: ...
    def stream(self, tensor: torch.Tensor) -> Any: ...
    def number(self, tensor: torch.Tensor) -> Any:
        """What tells the current stream of a tensor's device from every other."""

    def current(self, tensor: torch.Tensor) -> Callable[[], Any]:
        """Gives the same of the device that ``tensor`` is on, whenever it is asked."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside it, work goes to ``stream``."""

    def mark(self, stream: Any) -> Any:
        """A place in the stream, whose ``query()`` says whether everything before it is done."""

    def recording(self) -> bool:
        """Whether a graph is being captured, which a question to the device would break."""

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor: ...


class Cuda:
    def serves(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def stream(self, tensor: torch.Tensor) -> Any:
        return torch.cuda.current_stream(tensor.device)

    def number(self, tensor: torch.Tensor) -> Any:
        device = tensor.get_device()
        return device, torch._C._cuda_getCurrentRawStream(device)

    def current(self, tensor: torch.Tensor) -> Callable[[], Any]:
        return partial(torch._C._cuda_getCurrentRawStream, tensor.get_device())

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def mark(self, stream: Any) -> Any:
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def recording(self) -> bool:
        return recording()

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        buffer = torch.empty(numel, dtype=dtype, device="cpu", pin_memory=True)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))  # it outlives the interpreter
        return buffer


def may_hold(value: torch.Tensor) -> bool:
    """Whether it is a single number and not a part of something large, which would be held with it."""
    return value.numel() == 1 and value.untyped_storage().nbytes() <= _SMALL


_Held = tuple[torch.Tensor, int, int, Callable[[Any], None] | Several, int, Any]
"""Something that was left where it is: itself, how many numbers that is, its version, who asked for it, when, and what
it is known by there."""


class Readback:
    lane: Lane = Cuda()
    _free: ClassVar[dict[tuple[Lane, int, torch.dtype], list[torch.Tensor]]] = {}
    _cut: ClassVar[dict[tuple[Lane, int, int], list[Page]]] = {}
    """The same of pages, by their rows and columns: cut once and used again."""

    def __init__(
        self,
        spend: Callable[[str, int], None] = lambda _way, _ns: None,
        date: Callable[[int], None] = lambda _ns: None,
    ) -> None:
        self._spend = spend
        self._date = date
        """Told, before a late value is handed over, when it was taken; 0 afterwards."""
        self._waiting: deque[tuple[Any, torch.Tensor | Page, torch.Tensor, Done, int, int]] = deque()
        """Behind which mark; the memory, what lies in it, for whom, when it was taken, and when it was marked."""
        self._scalars: list[tuple[Callable[[float], None], int]] = []
        self._page: list[torch.Tensor] = []
        self._buffers: dict[int, list[torch.Tensor]] = {}
        self._words: dict[int, Any] = {}
        self._held: dict[int, _Held] = {}
        """By address."""
        self._held_at: Any = None
        self._held_on: Any = None
        """The stream that they were made in: its number, and itself."""
        self._unmarked: list[tuple[Page, torch.Tensor, Done, int]] = []
        self._unmarked_on: Any = None
        self.holding = True
        self.fetches = False
        """Whether something held was fetched before: what it takes is there."""
        self.beside = 3
        """So many numbers and rows at most come of a step, where several come together."""
        self.gather: Callable[[torch.Tensor], Gather | None] | None = None
        """Gives what fetches from the device of a tensor, where there is such."""
        self._stream: Any = None
        self.dropped = 0

    def read(self, tensor: torch.Tensor, done: Done) -> None:
        """Hands ``tensor``'s values to ``done`` on the host, now or later."""
        tensor = tensor.detach()
        if on_host(tensor):
            done(tensor)
            return
        if not self._takes(tensor):
            return
        flat = tensor.reshape(-1)
        buffer = self._buffer(flat.numel(), flat.dtype)
        target = buffer[: flat.numel()]
        target.copy_(flat, non_blocking=True)
        mark = self.lane.mark(self.lane.stream(tensor))
        at = now()
        self._waiting.append((mark, buffer, target.view(tensor.shape), done, at, at))

    def page(self, rows: int, columns: int, *, noted: bool = False) -> Page | None:
        """Memory of the host that the device itself is to write into; None while it gets no more to do for us.
        ``written`` or ``unused`` has to follow. ``noted``: in a step that nobody is told of yet, nothing is."""
        if len(self._waiting) >= _LONGEST and not noted:
            self.poll()
        if len(self._waiting) >= _LONGEST:
            self.dropped += 1
            return None
        cut = self._cut.get((self.lane, rows, columns))
        if cut:
            return cut.pop()
        buffer, table = self._buffer(rows * (columns + 1), torch.float64), rows * columns
        given: Any = buffer.numpy()[table : table + rows].view("int64")
        return Page(buffer, buffer[:table].view(rows, columns), given, memoryview(given).cast("B"), buffer.data_ptr())

    def written(self, page: Page, stream: Any, done: Done, taken: int = 0, *, passive: bool = False) -> None:
        """The device was told to fill ``page``, in ``stream``, at the time ``taken`` or now: hands it to ``done`` when
        that has happened. One mark stands for several pages. ``passive``: there is none just now."""
        if self._unmarked and stream != self._unmarked_on:
            if passive:
                self.dropped += 1  # and the page with it: nobody knows when it is written
                return
            self._mark()
        self._unmarked_on = stream
        self._unmarked.append((page, page.values, done, taken or now()))
        if len(self._unmarked) >= _ENOUGH and not passive:
            self._mark()

    def _mark(self) -> None:
        """Marks the place in the stream behind which the pages so far are written."""
        if self._held:
            self._fetch()  # what came before is told before
        unmarked, self._unmarked = self._unmarked, []
        mark, at = self.lane.mark(self._unmarked_on), now()
        self._waiting.extend((mark, *each, at) for each in unmarked)

    def unused(self, page: Page) -> None:
        """Nobody was told to fill ``page``, or it was read."""
        rows, columns = page.values.shape
        key = self.lane, rows, columns
        if key not in self._cut and len(self._cut) < _MOST_CUT:
            self._cut[key] = []
        if len(self._cut.get(key, _FULL)) < len(_FULL):
            self._cut[key].append(page)
        else:  # others may have it, of any shape
            self._free[self.lane, page.buffer.numel(), page.buffer.dtype].append(page.buffer)

    def keep(
        self,
        values: Sequence[tuple[torch.Tensor, Any, int]],
        whose: Several,
        *,
        passive: bool = False,
        noted: bool = False,
    ) -> None:
        """Numbers that stay as they are and where they are for a while, each with what it is known by and when it was
        made: only held, and fetched with others later. ``whose`` gets them together, or one by one in the order of
        their time.

        Where one does not stay, that is seen when another lies in its place, or it was written to: what was held then
        is dropped, and numbers are copied at once from there on. ``passive``: nothing may be asked of a device just
        now; what cannot be held is dropped. ``noted``: they were made some time ago, and one of them that lies where
        another does is as lost as that.
        """
        if (len(values) > 1 or (noted and values)) and self._keep_all(values, whose, passive=passive):
            return
        for value, tag, taken in values:
            held = may_hold(value) and self._holds(value, passive=passive)
            if held and self._scalars and not passive:
                self._send_scalars()  # what came before is told before
            bare = value.detach() if value.requires_grad else value
            if held and self._hold((bare, 1, value._version, whose, taken, tag)):
                continue
            if passive:
                self.dropped += 1
            else:
                self.scalar(value, partial(whose.alone, tag), whose)

    def _keep_all(self, values: Sequence[tuple[torch.Tensor, Any, int]], whose: Several, *, passive: bool) -> bool:
        """The same for several that are alike, none of which requires a gradient, in one go; False where they have to
        be taken one by one."""
        numbers, tags, times = zip(*values, strict=True)
        places = [number.data_ptr() for number in numbers]
        if len(set(places)) < len(places) or not self._held.keys().isdisjoint(places):
            self._written_over(whose)
            self.dropped += len(values)
            return True
        if self._held and len(self._held) + self.beside * len(values) > ROOM and not passive:
            self._fetch()  # these and what belongs to them stand in one page
        if self._scalars or len(self._held) + len(values) > ROOM or not self._holds(numbers[0], passive=passive):
            return False
        device = numbers[0].get_device()
        if any(number.dtype is not torch.float32 or number.get_device() != device for number in numbers):
            return False
        versions = [number._version for number in numbers]
        self._held.update(
            zip(places, zip(numbers, repeat(1), versions, repeat(whose), times, tags, strict=False), strict=True)
        )
        return True

    def _written_over(self, whose: Any) -> None:
        """Something of what ``whose`` has asked for lies where another of it does: nobody can tell what else does."""
        gone = [at for at, held in self._held.items() if held[3] is whose]
        for at in gone:
            del self._held[at]
        self.holding = False
        self.dropped += len(gone)

    def keep_row(self, values: torch.Tensor, done: Callable[[Any], None]) -> None:
        """The same of a row of numbers, which ``done`` gets as an array."""
        held = values.is_contiguous() and self._holds(values)
        if not held or not self._hold((values, values.numel(), values._version, done, now(), None)):
            self.read(values, lambda host: done(host.numpy()))

    def _holds(self, value: torch.Tensor, *, passive: bool = False) -> bool:
        if not self.holding or self.gather is None or value.dtype is not torch.float32 or not self.lane.serves(value):
            return False
        place = self.lane.number(value)
        if self._held and (len(self._held) >= ROOM or place != self._held_at):
            if passive:
                return False
            self._fetch()
        if not self._held:
            if not self.fetches and (passive or self.gather(value) is None):
                return False
            self._held_at, self._held_on = place, self.lane.stream(value)
        return True

    def _hold(self, held: _Held) -> bool:
        at = held[0].data_ptr()
        if at in self._held:
            self._written_over(self._held[at][3])
            return False
        self._held[at] = held
        return True

    def _fetch(self) -> None:
        """Has the device bring what is held."""
        held, self._held = self._held, {}
        for at in [at for at, (value, _, version, *_) in held.items() if value._version != version]:
            del held[at]
            self.holding = False
            self.dropped += 1
        if not held:
            return
        asked = list(held.values())
        first = asked[0][0]
        gather = self.gather(first) if self.gather is not None else None
        if gather is None:  # it was there when they were held
            self.dropped += len(held)
            return
        counts = [count for _, count, *_ in asked]
        self.fetches = True
        page = self._buffer(_REQUESTS + (sum(counts) + 1) // 2, torch.int64)
        words = self._words.setdefault(page.data_ptr(), page.numpy())
        places = [0, *accumulate(counts)]
        words[: len(held)] = list(held)
        words[ROOM : 2 * ROOM] = 0
        words[ROOM : ROOM + len(held)] = counts
        words[2 * ROOM : 2 * ROOM + len(held)] = places[:-1]
        if self.lane.number(first) == self._held_at:
            gather(page)
        else:  # elsewhere than they were made
            with self.lane.on(self._held_on):
                gather(page)

        def arrived(_host: torch.Tensor) -> None:
            self._hand_out(asked, places, words[_REQUESTS:].view("float32"))

        self._waiting.append((self.lane.mark(self._held_on), page, page, arrived, 0, 0))

    def _hand_out(self, asked: list[_Held], places: list[int], numbers: Any) -> None:
        """Gives what was fetched to whoever asked for it, ``places`` says where it lies; what fails with one of them is
        no other's loss."""
        calls: list[tuple[int, Callable[[Any], None], Any]] = []
        single: dict[Several, tuple[list[Any], list[float], list[int]]] = {}
        values = numbers[places[:-1]].tolist()
        for (_, count, _, done, taken, tag), at, value in zip(asked, places, values, strict=False):
            if not isinstance(done, Several):
                calls.append((taken, done, numbers[at : at + count].copy()))
                continue
            if done not in single:
                single[done] = [], [], []
            tags, found, times = single[done]
            tags.append(tag)
            found.append(value)
            times.append(taken)
        usual = all(whose.usual(found) for whose, (_, found, _) in single.items())
        for whose, (tags, found, times) in single.items():
            if usual:
                calls.append((0, partial(whose.together, tags), found))
                continue
            for tag, value, taken in zip(tags, found, times, strict=True):
                calls.append((taken, partial(whose.alone, tag), value))
        calls.sort(key=_when)
        failed: list[Exception] = []
        for taken, call, given in calls:
            self._date(taken)
            try:
                call(given)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def scalar(self, value: torch.Tensor, done: Callable[[float], None], whose: Several | None = None) -> None:
        """One number: at once from a CPU, else with others in a single page, behind a single mark. What ``whose`` had
        kept where it lies now was written over by it."""
        value = value.detach()
        if on_host(value):
            done(value.item())
            return
        if not self._takes(value, _LONGEST_OF_ALL):
            return
        if self._held:
            plain = whose is not None and type(value) is torch.Tensor
            there = self._held.get(value.data_ptr()) if plain else None
            if there is not None and there[3] is whose:
                self._written_over(whose)
            self._fetch()  # what came before is told before
        stream = self.lane.stream(value)
        if self._scalars and (len(self._scalars) == _SLOTS or stream != self._stream):
            self.send()  # one mark stands for all numbers of a page, so they come from one stream
        if not self._page:
            self._page = self._pages()
        self._stream = stream
        # Copied now, in the order of the stream: what the user writes into it later does not show.
        self._page[1 + len(self._scalars)].copy_(value.reshape(()), non_blocking=True)
        self._scalars.append((done, now()))

    def _takes(self, tensor: torch.Tensor, longest: int = _LONGEST) -> bool:
        if not self.lane.serves(tensor):
            self.dropped += 1
            return False
        if len(self._waiting) >= longest:
            self.poll()
        if len(self._waiting) >= longest:
            self.dropped += 1
            return False
        return True

    def send(self) -> None:
        """Marks the place in the stream behind which the single numbers so far have arrived; not while a graph is being
        captured, which would have our work in it for good, nor where another mode would see it."""
        if hands_off():
            return
        if self._held:
            self._fetch()
        if self._unmarked:
            self._mark()
        if self._scalars:
            self._send_scalars()

    def _send_scalars(self) -> None:
        scalars, self._scalars = self._scalars, []
        page, self._page = self._page[0], []

        def arrived(host: torch.Tensor) -> None:
            for number, (done, taken) in zip(host[: len(scalars)].tolist(), scalars, strict=True):
                self._date(taken)
                done(number)

        self._waiting.append((self.lane.mark(self._stream), page, page, arrived, 0, 0))
        self._stream = None

    def _pages(self) -> list[torch.Tensor]:
        """A page and its slots, cut once and used again: cutting one a step costs more than the copy."""
        page = self._buffer(_SLOTS, torch.float32)
        return self._buffers.setdefault(page.data_ptr(), [page, *page.unbind()])

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._scalars or self._held or self._unmarked)

    def late(self, stamp: int) -> bool:
        """Whether the device has yet to do what it was given before ``stamp``."""
        if not self._waiting or self.lane.recording():
            return False
        mark, *_, marked = self._waiting[0]
        return 0 < marked < stamp and not mark.query()

    @property
    def ripe(self) -> bool:
        """Whether enough single numbers wait to be worth a mark."""
        return len(self._scalars) >= _ENOUGH or len(self._held) >= _ENOUGH_HELD

    def poll(self) -> None:
        """Delivers what has arrived, in order."""
        if self._waiting and self.lane.recording():
            return
        passed = None
        while self._waiting and (self._waiting[0][0] is passed or self._waiting[0][0].query()):
            passed = self._waiting[0][0]
            self._deliver()

    def drain(self, seconds: float) -> None:
        """At the end of the run: gives the last copies a bounded time to arrive."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            if self._waiting[0][0].query():
                self._deliver()
            else:
                time.sleep(0.001)
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def _deliver(self) -> None:
        _, buffer, values, done, taken, _ = self._waiting.popleft()
        start = time.perf_counter_ns()
        self._date(taken)
        try:
            done(values)
        finally:
            self._date(0)
            if isinstance(buffer, Page):
                self.unused(buffer)
            else:
                self._free[self.lane, buffer.numel(), buffer.dtype].append(buffer)
            if values.numel() > _LITTLE:  # what full statistics cost when they arrive is part of what they cost
                self._spend("full", time.perf_counter_ns() - start)

    def _buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        size = 1 << max(4, (numel - 1).bit_length())
        free = self._free.setdefault((self.lane, size, dtype), [])
        if free:
            return free.pop()
        with torch.inference_mode(False):  # what is made inside of one can be written to nowhere else
            return self.lane.buffer(size, dtype)
