"""A vigil over gradients: on a device, whether every one of them is finite is decided in every step.

Enters: parameters whose gradients are about to be clipped or applied, in steps that are not looked at for them. Leaves:
some steps later, and under the step they were taken in, their statistics on the host. One launch reads all of them, and
nobody waits.

It is kept in every step where that costs next to nothing, every so many steps where it would cost more, and not at all
where the kernel does not run: on a host a norm of every gradient would cost a part of the step that is missed. In the
first seconds of a run, until the kernel is compiled, torch's own norms do instead.

Gradients mostly have the sizes that they had the step before. Then the launch is settled but for their addresses: the
device reads these from memory of the host and writes its numbers there, by itself.

A script that clips has torch compute the norm of every gradient, and of all. These are finite exactly if the gradients
are, or too large for their squares to be added. So in three steps of four, or more, they are only held, until it is
known whether the norm of all is finite; where it is not, those of the step tell which gradient was the reason.

What it costs the host is what it took when nothing was in its way (see ``backlog``), and nothing where the device is
behind anyway: then it is the device's time that counts.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from brickprof.capture import tensors
from brickprof.capture.readback import Page, Readback, Several
from brickprof.capture.surroundings import hands_off
from brickprof.clock import now

if TYPE_CHECKING:
    from brickprof.capture.fused import Launch
    from brickprof.capture.session import Session
    from brickprof.capture.stretch import Passed

_SHARE = {"light": 0.05, "standard": 0.75, "deep": 1.0}
"""Of the budget; the rest is for all other looks."""
_SHARE_BESIDE_NORMS = 0.4
"""Of tables where norms tell the rest."""
_LONGEST = {"light": 2048, "standard": 64, "deep": 64}
_AFTERWARDS = {"light": 4.0, "standard": 1.0, "deep": 1.0}
"""A table costs so many times what it takes to send for it until its rows are written: counted where a budget is so
small that nothing else would be left of it."""
_MOST_DOUBTS = 8
_RECKON = 16
_USUAL = 1.25
"""A look takes so many times the quickest one."""
_MOST_REFUSED = 8
_MOST_GROUPS = 16
"""Lists of parameters that are looked at. Of more the steps that are looked at anyway tell, and none else counts as
judged."""
_MOST_MEANWHILE_NS = {"light": 50_000_000, "standard": 250_000_000, "deep": 250_000_000}
"""What torch's norms may take the host, in all, while the kernel is being compiled."""
_MOST_MEANWHILE = 256
"""And how often they may be taken."""
_MOST_MICROS = 512
_PLAIN = {torch.Tensor}
_COLUMNS = 8
ROWS_EVERY = 4
"""Steps from one row of every gradient to the next: of a table, or where norms tell the rest, at least of those."""
_FREE = 2.0
"""A look that took less than so many times the quickest was not held up."""
_counter = time.perf_counter_ns


class Norms(NamedTuple):
    """What a clip has computed."""

    total: torch.Tensor
    each: torch.Tensor
    """One after another, in the order of the gradients where these are of one type and device."""
    version: int
    """Of ``total``, when it was made."""


class _Clip(NamedTuple):
    """Whose norms they are that are on their way."""

    step: int
    names: Names
    each: torch.Tensor


Ends = tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]"]


def ends_of(parameters: Sequence[torch.Tensor]) -> Ends:
    """Tells parameters from all others, as long as it is kept, whether they are alive or not: there is only one such
    reference to each."""
    return weakref.ref(parameters[0]), weakref.ref(parameters[-1])


class Names:
    """Whose the rows of a table are, for whoever wants to find that out once and not in every step. No parameter lives
    longer for it: what is on its way home when a training ends may stay so for long."""

    __slots__ = ("_parameters", "found")

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self.found: Any = None

    def are(self, parameters: Sequence[torch.Tensor], first: int) -> bool:
        """Whether they begin with the one whose id is ``first``, and end as ``parameters`` do."""
        one, last = self._parameters[0](), self._parameters[-1]()
        return one is not None and id(one) == first and last is not None and last is parameters[-1]

    def end_with(self, ends: Ends | None) -> bool:
        """Whether the first and the last are those, also where they are gone: a model that is, before the run is over,
        has left the last it did to us."""
        return ends is not None and self._parameters[0] is ends[0] and self._parameters[-1] is ends[1]

    def parameters(self) -> list[torch.Tensor]:
        """All of them; nothing where one is gone."""
        alive = [parameter for each in self._parameters if (parameter := each()) is not None]
        return alive if len(alive) == len(self._parameters) else []


class _Known(NamedTuple):
    """A look that may come again."""

    purpose: str
    tensors: int
    alike: bool
    """Whether all are of one type."""
    names: Names
    whole: bool
    """Whether every parameter had a gradient. Where some have none, they may be others the next time."""


class InPassing:
    """Sends for tables of the gradients of the same parameters: nothing but the launch."""

    __slots__ = ("_launch", "_readback", "_refused", "_rows", "_told")

    def __init__(self, launch: Launch, readback: Readback, rows: int, told: Callable[[int, bool], None]) -> None:
        self._launch = launch
        self._readback = readback
        self._rows = rows
        self._told = told
        self._refused = False

    def __call__(self, gradients: list[torch.Tensor]) -> Page | None:
        self._refused = False
        if len(gradients) != self._rows or hands_off():
            return None
        page = self._readback.page(self._rows, _COLUMNS, noted=True)
        if page is None:
            return None
        try:
            if self._launch(gradients, page.at, page.room):
                return page
        except Exception:  # sparse, or without memory of its own
            pass
        self._refused = True
        self._readback.unused(page)
        return None

    def took(self, ns: int, *, came: bool) -> None:
        """What the last one took the host in all. One that was not sent for tells nothing."""
        if came or self._refused:
            self._told(ns, self._refused)


Arrived = Callable[[int, Names, Any], None]
"""The step, the parameters that had a gradient, their statistics, or their norms."""
Normal = Callable[[list[int], list[float]], None]
"""Steps, and the norm of all gradients of each, which is finite."""
Usual = Callable[[list[float]], bool]
"""Whether norms are finite, and not larger than one could expect."""


class Broken(Protocol):
    """Told the step, the parameters that had a gradient, and the norm of each: not all are finite."""

    def __call__(self, step: int, names: Names, norms: list[float], *, clipped: bool = True) -> None: ...


def _within(parameters: Sequence[torch.Tensor], seen: frozenset[int]) -> bool:
    """Optimizers hold the parameters of a model in an order of their own: the ends and the number tell."""
    return len(parameters) <= len(seen) and id(parameters[0]) in seen and id(parameters[-1]) in seen


class Vigil:
    def __init__(
        self, session: Session, arrived: Arrived, normal: Normal, normed: Arrived, broken: Broken, usual: Usual
    ) -> None:
        self._session = session
        self._normed = normed
        self._by_norms = False
        """Whether norms of a clip stand in for some of the tables."""
        self._doubts = 0
        self._arrived = arrived
        self._normal = normal
        self._broken = broken
        self._totals = Several(usual, self._known_norms, self._known_norm)
        self._stride = 1
        self._turns = 0
        self._last = -1
        """The step of the last look."""
        self._covered: list[frozenset[int]] = []
        """What was looked at in it."""
        self._groups: dict[str, frozenset[int]] = {}
        """Whose gradients each purpose reads, those included that have none."""
        self._known: dict[tuple[int, int], _Known] = {}
        """By the first parameter and their number."""
        self._passing: deque[int] = deque(maxlen=_RECKON)
        """What tables took the host lately that were sent for in passing."""
        self._micros: dict[int, int] = {}
        """Of the last steps that had several backwards: the micro-batch of the last."""
        self._meanwhile_ns = self._meanwhiles = 0
        """What torch's norms have taken so far, and how often."""
        self._refused = 0
        """How many of them, one after another, came to nothing."""
        self._asked = 0
        """How many steps had norms that were not finite and are sent for again, all of them."""
        self._waiting: list[tuple[int, Names, Any]] = []
        """Broken tables that have arrived meanwhile, of steps behind those."""

    @property
    def stride(self) -> int:
        """Gradients are looked at in every step that this divides."""
        return self._stride

    def idle(self, step: int, most: int, *, clips: bool) -> int:
        """How many of the steps behind ``step`` are without a table, and so without anything that has to be done at
        once; up to ``most``."""
        every = max(self._stride, ROWS_EVERY) if clips and self._by_norms else self._stride
        return min(most, every - 1 - step % every)

    def every(self, *, clips: bool) -> int:
        """One step of so many that are only noted has a table, sent for in passing; 0 where that comes to nothing, or
        not yet."""
        if clips is not self._by_norms or self._refused >= _MOST_REFUSED or not self._known:
            return 0
        if not all(known.whole and known.alike for known in self._known.values()):
            return 0
        if not all(map(self._session.fused.settled, self._groups)):
            return 0
        return max(self._stride, ROWS_EVERY) if clips else self._stride

    def in_passing(
        self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], key: tuple[int, int], place: Any
    ) -> InPassing | None:
        """What sends for tables of ``parameters`` whose ``gradients`` are about to be clipped, or applied, in steps
        that are only noted and in the stream ``place``; ``passed`` has to follow. None where none would come."""
        known, launch = self._known.get(key), None
        if known is not None and known.names.are(parameters, key[0]) and len(gradients) == len(parameters):
            launch = self._session.fused.launch_of(known.purpose, gradients, place, anew=self._refused > 0)
        if launch is None or known is None:
            self._refused += 1
            return None
        return InPassing(launch, self._session.readback, known.tensors, self._learn_passing)

    def _learn_passing(self, spent: int, refused: bool) -> None:
        if refused:
            self._refused += 1
            self._passing.clear()
        else:
            self._refused = 0
            self._passing.append(spent)

    def cost(self, tables: int, spent: int) -> int:
        """What so many tables cost, sent for in passing, that took the host ``spent``."""
        device = self._device_ns
        return min(spent, int(tables * device)) if device and self._session.hidden else spent

    @property
    def _device_ns(self) -> float:
        """What a table of all gradients takes the device."""
        return sum(map(self._session.fused.device_ns, self._groups))

    def wants(self, optimizer: Any) -> bool:
        """Whether the gradients that ``optimizer`` is about to apply are to be looked at; told by the ends of it."""
        step, covered = self._session.step, self.covers(optimizer)
        if self._by_norms and not covered and not hands_off():
            self._doubt()
        return not covered and not step % self._stride

    def covers(self, optimizer: Any) -> bool:
        """Whether what ``optimizer`` updates was looked at in this step, or the norms of it are held."""
        groups = optimizer.param_groups
        if self._last != self._session.step or not groups:
            return False
        ends = {*map(id, groups[0]["params"][:1]), *map(id, groups[-1]["params"][-1:])}
        count = sum(len(group["params"]) for group in groups)
        if any(count <= len(seen) and ends <= seen for seen in self._covered):
            return True
        return len(self._covered) > 1 and self._all_in(frozenset().union(*self._covered), groups)

    def _all_in(self, seen: frozenset[int], groups: Sequence[dict[str, Any]]) -> bool:
        """Of an optimizer that is looked at in parts, as a clip or their devices divide it."""
        return all(id(each) in seen for group in groups for each in group["params"] if each.grad is not None)

    def _doubt(self) -> None:
        """Something was updated that nobody clipped: norms do not tell all. Where that happens again and again, they
        stand in for no table any more."""
        self._doubts += 1
        if self._doubts >= _MOST_DOUBTS:
            self._by_norms = False
            self._session.cadence.relieve(False)
            self._stride = 1  # until it is known what tables cost

    def take(self, parameters: Sequence[torch.Tensor], norms: Norms | None = None) -> None:
        """Looks at the gradients of ``parameters``, if it is time and they lie on a device."""
        step = self._session.step
        if not self._session.takes_norms:
            norms = None
        key = (id(parameters[0]), len(parameters)) if parameters else (0, 0)
        known = self._known_as(key, parameters) if norms is not None else None
        held = known is not None and known.alike and step % max(self._stride, ROWS_EVERY) != 0
        held = held and self._doubts < _MOST_DOUBTS
        if (step % self._stride and not held) or not parameters or not parameters[0].is_cuda or hands_off():
            return
        if self._last != step:
            self._last, self._covered = step, []
            self._count_backwards(step, self._session.steps.backwards)
        elif any(_within(parameters, seen) for seen in self._covered):
            return  # clipping came before the update
        if held and known is not None and norms is not None:
            if not self._by_norms:
                self._by_norms = True
                self._session.cadence.relieve(True)
            self._hold([(step, now(), norms)], self._names(known, parameters))
            self._covered.append(self._groups[known.purpose])
            return
        start = _counter()
        if purpose := self._read(parameters):
            self._covered.append(self._groups[purpose])
            self._learn(purpose, _counter() - start)
        else:
            if not self._by_norms:
                self._session.cadence.relieve(False)
            if self._session.fused.coming and self._meanwhiles < _MOST_MEANWHILE:
                self._meanwhile(parameters, norms, start)

    def _count_backwards(self, step: int, backwards: int) -> None:
        if backwards > 1:
            self._micros[step] = backwards - 1
            if len(self._micros) > _MOST_MICROS:
                del self._micros[next(iter(self._micros))]

    def micro_of(self, step: int) -> int:
        """The last micro-batch of a step that was looked at: all of them are in its gradients."""
        return self._micros.get(step, 0)

    def passed(self, step: int, steps: Passed, which: range) -> None:
        """The same for steps that are over, the first of which is ``step``, with what their clips have computed of the
        parameters that their key has stood for, all of which had a gradient, or with tables sent for in passing."""
        known, readback = self._known.get(steps.key), self._session.readback
        if known is not None and not (known.alike and known.whole and known.names.end_with(steps.ends)):
            known = None
        clips, pages, passive = [], [], hands_off()
        for at, number in zip(which, range(step, step + len(which)), strict=True):
            page, last = steps.tables.get(at), min((at + 1) * steps.parts, len(steps.losses)) - 1
            self._count_backwards(number, last + 1 - at * steps.parts)
            if page is not None:
                pages.append((last, number, page))
            elif at < len(steps.norms):
                clips.append((number, steps.stamps[last], steps.norms[at]))
        if self._by_norms and known is not None:
            self._hold(clips, known.names, passive=passive)
        elif self._by_norms:
            readback.dropped += len(clips)
        stream = readback.lane.stream(steps.losses[pages[0][0]]) if pages else None  # all of a stretch are in one
        for at, number, page in pages:
            done = partial(self._kept, number, known.names) if known is not None else self._forget
            readback.written(page, stream, done, steps.stamps[at], passive=passive)
        if known is not None and (which[-1] in steps.tables or (self._by_norms and which[-1] < len(steps.norms))):
            self._last, self._covered = step + len(which) - 1, [self._groups[known.purpose]]
        if self._passing and not passive:
            self._reckon()

    def _meanwhile(self, parameters: Sequence[torch.Tensor], norms: Norms | None, start: int) -> None:
        """The kernel is being compiled: until it is there torch's norms tell, those of a clip or some of our own."""
        session, step = self._session, self._session.step
        self._meanwhiles += 1
        try:
            having = [parameter for parameter in parameters if parameter.grad is not None]
            values = [tensors.local(parameter.grad) for parameter in having if parameter.grad is not None]
            if not values:
                return
            # Of several devices and types a clip has the norms in an order of its own.
            alike = len({(value.device, value.dtype) for value in values}) == 1
            clipped = norms is not None and alike and norms.each.numel() == len(values)
            # The script may write over what is its own.
            each = norms.each.clone() if clipped and norms is not None else tensors.l2_norms(values)
            names = Names(having)
            session.readback.read(each, lambda host: self._came_meanwhile(step, names, host, clipped=norms is not None))
        except Exception:  # no memory left, or gradients of a kind of their own
            self._meanwhiles = _MOST_MEANWHILE
            return
        self._covered.append(frozenset(map(id, parameters)))
        spent = _counter() - start
        self._meanwhile_ns += spent
        if self._meanwhile_ns >= _MOST_MEANWHILE_NS[session.settings.level]:
            self._meanwhiles = _MOST_MEANWHILE
        session.correct(-spent)
        session.charge_start(spent)

    def _came_meanwhile(self, step: int, names: Names, host: torch.Tensor, *, clipped: bool) -> None:
        sizes = host.double()
        total = float(sizes.norm())
        if math.isfinite(total):
            self._normal([step], [total])
        else:
            self._broken(step, names, sizes.tolist(), clipped=clipped)

    def _kept(self, step: int, names: Names, host: torch.Tensor) -> None:
        """A table has arrived. What is broken in it waits for norms of a step before it that were broken too: those
        are sent for a second time."""
        table = host.numpy()
        if self._asked and table[:, :2].any():
            self._waiting.append((step, names, table.copy()))
        else:
            self._arrived(step, names, table)

    def _forget(self, _host: torch.Tensor) -> None:
        """Whose a table was nobody knows any more."""
        self._session.readback.dropped += 1

    def _hold(self, clips: Sequence[tuple[int, int, Norms]], names: Names, *, passive: bool = False) -> None:
        """Norms that clips have computed: enough to tell later whether, and where, something was not finite."""
        readback = self._session.readback
        valid = [each for each in clips if each[2].total._version == each[2].version]
        readback.dropped += len(clips) - len(valid)  # the script has written over them
        kept = [(norms.total, _Clip(step, names, norms.each), at) for step, at, norms in valid]
        readback.keep(kept, self._totals, passive=passive)
        if not passive:
            for step, _, norms in valid:
                if step % ROWS_EVERY == 0:
                    readback.keep_row(norms.each, partial(self._normed, step, names))

    def _known_norms(self, clips: list[_Clip], totals: list[float]) -> None:
        self._normal([clip.step for clip in clips], totals)

    def _known_norm(self, clip: _Clip, total: float) -> None:
        step, names, each = clip
        if math.isfinite(total):
            self._normal([step], [total])
        elif not hands_off():
            if each.is_cuda:  # it may have been made in another stream than this: there it is not to be used again yet
                each.record_stream(torch.cuda.current_stream(each.device))
            self._asked += 1
            readback = self._session.readback
            dropped = readback.dropped
            readback.read(each.double(), lambda host: self._asked_for(step, names, host))
            if readback.dropped > dropped:  # the device is too far behind
                self._asked = max(self._asked - 1, 0)

    def _asked_for(self, step: int, names: Names, host: torch.Tensor) -> None:
        """The norms of a step have arrived, not all of which are finite."""
        self._asked = max(self._asked - 1, 0)
        self._told_until(step)
        try:
            self._broken(step, names, host.tolist())
        finally:
            if not self._asked:
                self._told_until(None)

    def _told_until(self, step: int | None) -> None:
        """Tells of the broken tables that have waited, of steps before ``step``."""
        ready = [each for each in self._waiting if step is None or each[0] < step]
        self._waiting = [each for each in self._waiting if step is not None and each[0] >= step]
        for each in ready:
            self._arrived(*each)

    def _known_as(self, key: tuple[int, int], parameters: Sequence[torch.Tensor]) -> _Known | None:
        """What is known of ``parameters``, and not of others that lay there before them."""
        known = self._known.get(key)
        if known is not None and known.whole and not known.names.are(parameters, key[0]):
            return None
        return known

    def _names(self, known: _Known, parameters: Sequence[torch.Tensor]) -> Names:
        return known.names if known.whole else Names([each for each in parameters if each.grad is not None])

    def _read(self, parameters: Sequence[torch.Tensor]) -> str:
        """Sends for the statistics of the gradients; the purpose, or nothing where the kernel does not read them."""
        values = [grad for parameter in parameters if (grad := parameter.grad) is not None]
        whole = len(values) == len(parameters)
        having = parameters if whole else [each for each in parameters if each.grad is not None]
        key = id(parameters[0]), len(parameters)
        known = self._known_as(key, parameters)
        plain = set(map(type, values)) == _PLAIN  # no shards; what is sparse has the type of any tensor
        if known is None or known.tensors != len(values) or known.whole is not whole or not plain:
            known = None
        if known is not None and self._read_again(known, known.names if whole else Names(having), values):
            return known.purpose
        if not plain:
            values = [tensors.local(value) for value in values]
        purpose = self._purpose(having, parameters)
        table = self._session.fused.timed_table(purpose, values) if purpose else None
        if table is None:
            return ""
        if len(self._known) > _MOST_GROUPS:
            self._known.clear()
        step, order, names = self._session.step, table.in_order, Names(having)
        self._known[key] = _Known(purpose, len(values), table.places is None, names, whole)
        self._session.readback.read(table.values, lambda host: self._arrived(step, names, order(host.numpy())))
        return purpose

    def _read_again(self, known: _Known, names: Names, values: Sequence[torch.Tensor]) -> bool:
        """The same in one launch and nothing else; False where the gradients are not of the same sizes."""
        session = self._session
        readback, step = session.readback, session.step
        if not session.fused.settled(known.purpose):
            return False
        page = readback.page(known.tensors, _COLUMNS)
        if page is None:
            return False
        stream = readback.lane.stream(values[0])
        if not session.fused.again(known.purpose, values, page, stream):
            readback.unused(page)
            return False
        readback.written(page, stream, partial(self._kept, step, names))
        return True

    def _purpose(self, having: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> str:
        """Several optimizers take turns: each has a table of addresses of its own."""
        name = f"{id(having[0])}.{len(having)}" if having else ""
        if name not in self._groups:
            if len(self._groups) >= _MOST_GROUPS:
                return ""
            self._groups[name] = frozenset(map(id, parameters))
        return name

    def _learn(self, purpose: str, spent: int) -> None:
        """Host and device work side by side: what counts is the one that takes longer."""
        if self._passing:
            self._passing.popleft()  # it may be that none is sent for in passing any more
        session = self._session
        backlog = session.backlog
        held_up = spent > _FREE * backlog.quickest(purpose)
        behind = held_up and session.readback.late(now() - int(session.cadence.typical_ns))
        ours = backlog.cost(purpose, spent, behind=behind, steady=True)
        session.correct(int(ours) - spent)
        self._turns += 1
        if not self._turns % _RECKON:
            self._reckon()

    def _stride_of(self, steps: float) -> int:
        """The power of two that is at least ``steps``, as far as the level goes."""
        return min(1 << max(math.ceil(steps) - 1, 0).bit_length(), _LONGEST[self._session.settings.level])

    def _reckon(self) -> None:
        session = self._session
        device, hidden = self._device_ns, session.hidden
        cadence, share = session.cadence, _SHARE[session.settings.level]
        if self._by_norms:
            share = min(share, _SHARE_BESIDE_NORMS)
            usual = sum(map(session.backlog.usual, self._groups))
            host = min(usual, median(self._passing)) if self._passing else usual
        else:
            host = _USUAL * sum(map(session.backlog.quickest, self._groups))
            host = min(host, median(self._passing)) if self._passing else host
        host *= _AFTERWARDS[session.settings.level]
        cost = device if hidden and device else max(host, device)
        room = max(share * cadence.budget * cadence.typical_ns, 1.0)
        self._stride = stride = self._stride_of(cost / room)
        if not self._by_norms:  # or else those judge every step
            # Where the whole is dearer than it may be there is less of this too, but still what rows are made of.
            ease = 1.0 if hidden else cadence.ease
            self._stride = min(self._stride_of(cost / (room * ease)), max(stride, ROWS_EVERY))
            cadence.relieve(bool(self._passing) and self._stride <= ROWS_EVERY and self._refused < _MOST_REFUSED)
