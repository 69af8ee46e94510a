"""A stretch of steps in which nothing is looked at: what happens is noted, and dealt with when it is over.

Enters: the signals of a training that repeats itself: a batch, a backward, perhaps a clip, an update. Leaves: the same
signals, told to the session all at once when the stretch is over, with the times they had.

In a training whose host is busy all the time, code that runs a few times a step is in no cache, and every line of it
takes ten times as long as it should. Here a signal is a comparison and an append, and half of the signals are less: a
batch leaves a mark, the beginning of an update not even that. The session works a stretch of steps off in one go, and
finds itself warm. Whatever is not exactly what the step before did ends the stretch at once, before anybody deals with
it: an evaluation, a backward too many, a loss scaler, an exception, the end.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from brickprof.capture.book import owned
from brickprof.capture.desk import desk
from brickprof.capture.readback import ROOM, Page, may_hold
from brickprof.capture.surroundings import static_outputs
from brickprof.capture.tensors import on_host
from brickprof.capture.vigil import ends_of
from brickprof.clock import OFFSET

if TYPE_CHECKING:
    from brickprof.capture.sentry import Sentry
    from brickprof.capture.session import Session
    from brickprof.capture.vigil import Ends, InPassing, Norms


class Most(NamedTuple):
    """No stretch lasts longer: whoever waits for a sign of life gets one."""

    steps: int = 32
    ns: int = 800_000_000


_MOST = {"light": Most(128, 3_000_000_000)}
"""By level, where it is not as usual."""
_LEAP = 2.0
_WAIT = 16
_LONGEST = 4096
_NOTED_NS = 30_000
"""What the signals of a step are taken to cost that are only noted, until some were timed."""
_AROUND, _AROUND_NORMS = 1.25, 1.6
"""So many times that is what it takes with all that is patched into torch for it, which asks no clock; and where the
norms of a clip are caught."""
_TIMED = 9
_CAREFUL = 2
"""Steps of every stretch in which each loss is looked at from all sides, before others are taken to be like them."""
_NONE = -1
"""No loss has this version."""
_UPDATED, _BACKWARD, _CLIPPED, _STOPPED = range(4)
_LIKELY = re.compile(r"f*((?:bf*)*b)c?u")
"""A step whose like can be noted: batches, a backward or more, perhaps a clip, an update."""
_counter = time.perf_counter_ns
_thread = threading.get_ident
_modes = torch._C._len_torch_dispatch_stack
_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_Tensor = torch.Tensor


class Passed(NamedTuple):
    """The steps of a stretch, in columns. Of the last one, or two, not everything has happened yet."""

    parts: int
    """Backwards that a step has, of each of which the following four tell."""
    began: Sequence[int]
    """When its step did: with the update before it."""
    losses: Sequence[torch.Tensor]
    version: int
    """Of every loss, when it was differentiated: one that has another now was written over since."""
    stamps: Sequence[int]
    """When that was."""
    zeroed: Sequence[int]
    """How often gradients had been cleared by then."""
    key: tuple[int, int]
    """Of what was clipped, or updated: the id of the first parameter, and their number."""
    ends: Ends | None
    """The first and the last of them."""
    norms: Sequence[Norms]
    """What each clip has computed; nothing where that is not wanted."""
    tables: dict[int, Page]
    """By the place of the step: the table of all gradients, where it was sent for."""
    rates: Sequence[Any]
    """With which the updates were made: so many steps are over."""
    entered: int
    """When the next step began (a batch was asked for, or a model ran) after the last update, if nothing else has
    followed."""

    @property
    def whole(self) -> int:
        """How many steps are over."""
        return len(self.rates)

    @property
    def begun(self) -> int:
        """How many have begun."""
        return -(-len(self.losses) // self.parts) + bool(self.entered)

    def backwards(self, which: range) -> range:
        """Those of some steps, by their places; not all of them where the last one is not over."""
        return range(which.start * self.parts, min(which.stop * self.parts, len(self.losses)))


class Stretch:
    """What was noted so far. Every method says whether the signal was one that it waits for. No model, optimizer or
    graph lives longer for it: a training may end in the middle of a stretch, and the program go on for hours."""

    __slots__ = (
        "_at", "_began", "_catches", "_cleared", "_clips", "_current", "_device", "_due", "_ends", "_every", "_key",
        "_lane", "_left", "_losses", "_more", "_norms", "_number", "_optimizer", "_parts", "_passed", "_place", "_rate",
        "_rates",
        "_refused", "_sends", "_session", "_stream", "_tables", "_until", "_version", "_whole", "_zeroed", "caught",
        "due", "entered", "gradients", "looks_out", "noted_ns", "open", "tables_ns", "thread", "waits", "whose",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        optimizer: Any,
        number: int,
        steps: int,
        *,
        parts: int,
        clips: bool,
        whole: bool,
        tables: int,
        catches: bool,
        most_ns: int,
    ) -> None:
        self._session = session
        self._number = number
        self._optimizer = weakref.ref(optimizer)
        self.whose = id(optimizer)
        """The id of the optimizer whose updates are noted."""
        self._cleared = desk.clears(self.whose)
        self._zeroed = desk.zeroed
        """How often that one had cleared gradients when this began, and anybody when it made its last update."""
        self.waits = False
        """Whether its update is what comes next."""
        self._parts = self._more = parts
        """Backwards that a step has, and how many of them the one under way has still to have."""
        self._clips = clips
        """Whether the norms of a clip are noted in each step."""
        self._whole = whole
        """Whether all that is updated is clipped before, and not only a part of it."""
        self._key: tuple[int, int] | None = None
        """Of what is clipped."""
        self._ends: Ends | None = None
        self._every = tables
        self._due = 1 + -(session.step + 1) % tables if tables else 0
        """A table is sent for in one step of so many, and next in the step of that number."""
        self.due = False
        """Whether that is the one under way."""
        self.gradients: list[torch.Tensor] | None = None
        """Which are about to be clipped in it."""
        self._catches = catches
        """Whether the update itself tells which gradients it applies, where nobody clips: it collects them anyway."""
        self.caught: tuple[list[Any], list[Any]] | tuple[()] | None = None
        """Parameters and gradients that it has told so far, in a step that is to have a table and has none yet."""
        self._refused = False
        """Whether it has told all of them, in vain."""
        self._sends: InPassing | None = None
        self._tables: dict[int, Page] = {}
        self.tables_ns = 0
        """What that took."""
        self.looks_out: Sentry | None = None
        """Who looks out over the blocks meanwhile."""
        self._left = steps
        self.noted_ns = 0
        """What noting took in the step that was timed."""
        self._began = _counter()
        """When the step under way did: with the update before it."""
        self._until = self._began + most_ns
        self.thread = _thread()
        """The one that it is noted by, and nothing of any other."""
        self.open = True
        """Whether another step may be noted."""
        self.entered = False
        """Whether a batch was asked for since the last update, or a model has begun to run."""
        self._lane = session.readback.lane
        self._at = _UPDATED
        self._passed: list[tuple[Any, ...]] = []
        self._norms: list[Norms] = []
        self._rates: list[Any] = []
        """Of each step: how it began, what a clip has computed, and the rate that the update was made with."""
        self._rate = rate_of(optimizer)
        self._device = -1
        """Where losses are made."""
        self._current: Callable[[], Any] | None = None
        """Gives the number of the stream that is current on it."""
        self._place: Any = None
        self._stream: Any = None
        """The stream that losses are made in: its number, and itself."""
        self._version = 0
        """Of the last loss that was looked at from all sides; the others are taken to have the same."""
        self._losses: set[int] = set()
        """Where the first lie: one that lies where another does is written over by every replay of a graph."""

    def follow(self, before: Stretch) -> None:
        """Begins at once where ``before`` has ended: whatever is not as it was there is worth a look, a rate too that
        has changed between the two."""
        self._key, self._ends, self._rate = before._key, before._ends, before._rate

    @property
    def done(self) -> bool:
        """Whether nothing was out of the ordinary so far, of steps that are over."""
        return self._at == _UPDATED and len(self._rates) > 1 and _thread() == self.thread

    def begins_step(self) -> bool:
        """A step begins, or another micro-batch of it: whether it is one more of these."""
        if not self.open or _thread() != self.thread:
            return False
        self.entered = True
        return True

    @property
    def between(self) -> bool:
        """Whether the next step has still to begin, or has not come to its last backward."""
        return self._more > 0

    @property
    def optimizer(self) -> Any:
        """None where it is gone."""
        return self._optimizer()

    def backward(self, loss: Any) -> bool:
        """One that starts from ``loss`` and nothing else, keeps no graph and is one of all leaves."""
        if not self._more or not self.open or _thread() != self.thread:
            return False
        if self._at == _BACKWARD and _task() != -1:
            return False  # one inside another
        try:
            if type(loss) is not _Tensor or self._current() != self._place:  # type: ignore[misc]
                return False
            if loss.get_device() != self._device:
                return False
            if _modes() or (loss._base is not None and not may_hold(loss)):
                return False
            self._passed.append((self._began, loss.detach(), _counter(), desk.zeroed))
            more = self._more - 1
            self.due = not more and len(self._rates) + 1 == self._due
            if self.looks_out is not None:
                self.looks_out.backward(loss, len(self._passed) - 1)
        except Exception:
            return False
        self._at, self._more = _BACKWARD, more
        self.waits = not (self._clips or more)
        return True

    def differs(self) -> None:
        """A backward is about to end this that could not be noted: what blocks have put out is for that one."""
        if self.looks_out is not None and _thread() == self.thread:
            self.looks_out.further = True

    def _begin(self, loss: torch.Tensor) -> bool:
        """The first loss: where the others have to be, if it may be held."""
        if on_host(loss) or loss.dtype is not torch.float32:
            return False
        lane, self._device = self._lane, loss.get_device()
        current, self._stream = lane.current(loss), lane.stream(loss)
        self._current, self._place = current, current()
        return True

    def clipped(self, parameters: list[Any], norms: Norms | None) -> bool:
        if self._at != _BACKWARD or self._more or not self._clips or norms is None or _thread() != self.thread:
            return False
        try:
            key = id(parameters[0]), len(parameters)
            if key != self._key:
                if self._key is not None:
                    return False  # others than before
                self._key, self._ends = key, ends_of(parameters)
            if norms.each.numel() != key[1]:
                return False
            self._norms.append(norms)
            if self.due:
                self._send_for_table(parameters, self.gradients, key, _counter())
        except Exception:
            return False
        self._at = _CLIPPED
        self.waits = True
        return True

    def begins(self, optimizer: Any) -> bool:
        """An update of gradients that nobody has clipped, in a step that has a table; False where it does not come."""
        if _thread() != self.thread:
            return False
        start = _counter()
        try:
            if self._key is None or not self._catches:
                parameters = owned(optimizer)
                key = id(parameters[0]), len(parameters)
                if self._key is None:
                    self._key, self._ends = key, ends_of(parameters)
            if self._catches:
                self.caught, desk.owed = (), 0
                self.tables_ns += _counter() - start
                return True
            gradients = [parameter.grad for parameter in parameters]
            return key == self._key and self._send_for_table(parameters, gradients, key, start)
        except Exception:
            return False

    def catch(self, lists: Any) -> None:
        """The update under way is about to apply gradients: ``lists`` of parameters, of these, and of whatever else. As
        soon as they are all a table of them is sent for, before anybody writes into one. Never raises."""
        start, caught = _counter(), self.caught
        if caught is None or _thread() != self.thread:
            return
        try:
            parameters, gradients = lists[0], lists[1]
            if gradients[0] is not parameters[0].grad or gradients[-1] is not parameters[-1].grad:
                return  # something else, in lists of the same kind
            if caught:
                parameters, gradients = [*caught[0], *parameters], [*caught[1], *gradients]
            key = id(parameters[0]), len(parameters)
            if key == self._key:
                self.caught = () if not self._send_for_table(parameters, gradients, key, start) else None
                self._refused = self.caught is not None
                return
            self.caught = (parameters, gradients)
        except Exception:  # lists of another kind
            self.caught = ()
        self.tables_ns += _counter() - start

    def _send_for_table(
        self, parameters: list[Any], gradients: list[Any] | None, key: tuple[int, int], start: int
    ) -> bool:
        """Whether it will come; the time since ``start`` is what it took."""
        page = None
        self.due, self.gradients = False, None
        try:
            if gradients and gradients[0].get_device() == self._device and self._current() == self._place:  # type: ignore[misc]
                if self._sends is None:
                    self._sends = self._session.tables_in_passing(parameters, gradients, key, self._place)
                page = self._sends(gradients) if self._sends is not None else None
            if page is not None:
                self._tables[self._due - 1] = page
            self._due += self._every
        except Exception:
            self._due = 0
        took = _counter() - start
        self.tables_ns += took
        if self._sends is not None:
            self._sends.took(took, came=page is not None)
        return page is not None

    def updated(self, optimizer: Any) -> bool:
        if not self.waits or id(optimizer) != self.whose:
            return False
        if self.caught is not None:
            if not self._refused:
                self._session.stretches.missed()  # it has told none of them, or not all
            return False
        try:
            rate, last = optimizer.param_groups[0]["lr"], self._rate
            if rate is not last and not (type(rate) is type(last) is float and rate <= _LEAP * last):
                return False  # a leap of the rate is worth a look
            self._rates.append(rate)
        except Exception:
            return False
        self._rate = rate
        self._at, self._more = _UPDATED, self._parts
        self.waits = self.entered = False
        if self.looks_out is not None:
            self.looks_out.update()
        self._began = at = _counter()
        self._zeroed = desk.zeroed
        self._left -= 1
        self.open = self._left > 0 and at < self._until
        return True

    def close(self) -> None:
        """No other step is noted: somebody may look out in the next one."""
        session, start = self._session, _counter()
        if session.lookout is not None:
            session.lookout.prepare(session.step + len(self._rates) + 1)
        session.correct(_counter() - start)

    def over(self) -> None:
        """Tells the session what has passed."""
        if self.caught is not None:
            self.caught, desk.owed = None, self.whose
        began, losses, counted, zeroed = zip(*self._passed, strict=True) if self._passed else ((),) * 4
        entered = _counter() if self.entered and self._at == _UPDATED else 0
        stamps, key = [at + OFFSET for at in counted], self._key or (0, 0)
        steps = Passed(
            self._parts, began, losses, self._version, stamps, zeroed, key, self._ends, self._norms, self._tables,
            self._rates, entered,
        )  # fmt: skip
        self._session.correct(self._session.tables_cost(len(self._tables), self.tables_ns))
        if self._rates:
            desk.passed(self.whose, self._cleared, self._zeroed)
        lane, elsewhere = self._lane, self._current is not None and self._current() != self._place
        first = self._session.step + 1
        with lane.on(self._stream) if elsewhere else nullcontext():
            if self.looks_out is not None:
                self.looks_out.over(first)
            self._session.stretches.over(self._number, steps, self.noted_ns)
        if self.looks_out is not None:
            self.looks_out.hand_back()

    def stop(self) -> None:
        """Another thread has something to tell: no signal is waited for any more, and no stretch is begun again."""
        self.open = self.waits = False
        self._at = _STOPPED
        self._session.stretches.never = True


class Careful(Stretch):
    """The same in the first steps: a loss is only noted where it can be left where it is."""

    __slots__ = ()

    def backward(self, loss: Any) -> bool:
        try:
            if type(loss) is not _Tensor or _thread() != self.thread:
                return False
            at = loss.data_ptr()  # what is traced or transformed has none
            if self._current is None and not self._begin(loss):
                return False
            if at in self._losses:
                self._version = _NONE  # this one has been written over those that were noted
                return False
            if not may_hold(loss) or (self._losses and loss._version != self._version):
                return False
            version = loss._version
            noted = super().backward(loss)
        except Exception:
            return False
        if noted:
            self._losses.add(at)
            self._version = version
        return noted

    def updated(self, optimizer: Any) -> bool:
        noted = super().updated(optimizer)
        if len(self._rates) == _CAREFUL:
            self.__class__ = _Timed  # type: ignore[assignment]
        return noted


class _Timed(Stretch):
    """The same in the step behind these: what noting takes is timed, which costs as much again."""

    __slots__ = ()

    def backward(self, loss: Any) -> bool:
        start, looks_out = _counter(), self.looks_out
        before = looks_out.spent_ns if looks_out is not None else 0
        noted = super().backward(loss)
        looked = looks_out.spent_ns - before if looks_out is not None else 0
        self.noted_ns += _counter() - start - looked
        return noted

    def clipped(self, parameters: list[Any], norms: Norms | None) -> bool:
        start, tables = _counter(), self.tables_ns
        noted = super().clipped(parameters, norms)
        self.noted_ns += _counter() - start - (self.tables_ns - tables)
        return noted

    def updated(self, optimizer: Any) -> bool:
        start, tables = _counter(), self.tables_ns
        noted = super().updated(optimizer)
        self.noted_ns += _counter() - start - (self.tables_ns - tables)
        self.__class__ = Stretch  # type: ignore[assignment]
        return noted


class Stretches:
    """When a stretch may begin, and what the session learns when it is over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._most = _MOST.get(session.settings.level, Most())
        self._from = self._vain = 0
        """The step from which on a stretch is tried again, and how often one was begun in vain, one after another."""
        self.never = False
        self._noted: deque[int] = deque([_NOTED_NS], maxlen=_TIMED)
        """What the signals of a step took that were only noted, in some steps."""
        self._parts = 1
        """Backwards that the last step had which was like one that can be noted."""
        self._missed = False
        """Whether gradients were to be told, and were not those that were waited for."""

    def offer(self, optimizer: Any, before: Stretch | None = None) -> Stretch | None:
        """``optimizer`` has made the update of a step that nobody looked at, or the last one of the stretch ``before``:
        the steps that follow, if they are likely to be like it and nobody looks at them either."""
        session = self._session
        if self.never or not session.readback.fetches or session.thread != _thread():
            return None
        likely = _LIKELY.fullmatch(session.pattern)
        if likely is None or session.world_size > 1 or session.step < self._from:
            return None
        if session.expecting or session.census.due:
            return None
        parts = likely[1].count("b")
        if parts != self._parts:
            self._parts = parts
            if parts > 1:
                return None  # once may be a batch that was not worth an update
        if session.lookout is not None and session.lookout.ahead(session.step, 2, parts) <= 1:
            return None
        if not session.readback.holding or static_outputs() or rate_of(optimizer) is None:
            return None  # losses that cannot be left where they are, or a rate that nobody knows
        number, cadence = session.book.optimizer(optimizer), session.cadence
        if not session.steps.only(number) or 2 * cadence.typical_ns > self._most.ns:
            return None
        clips = "c" in session.pattern
        whole = before._whole if before is not None else clips and not session.wants(optimizer)
        room = ROOM // (parts + session.readback.beside - 1)  # for what is held in the meantime
        steps = cadence.ahead(session.step, min(self._most.steps, room))
        if session.lookout is not None:
            steps = session.lookout.ahead(session.step, steps, parts)
        tables = session.tables_every(clips=clips) if whole or not clips else 0
        steps = steps if tables else session.idle(session.step, steps, clips=whole)
        if steps <= 1:
            return None
        normed, most = clips and session.takes_norms, self._most.ns
        catches = bool(tables) and not clips and not self._missed and _tells(optimizer)
        if catches and desk.lists_wanted is not None:
            desk.lists_wanted()
        made = Careful(
            session, optimizer, number, steps, parts=parts, clips=normed, whole=whole, tables=tables, catches=catches,
            most_ns=most,
        )  # fmt: skip
        if before is not None:
            made.follow(before)
        if session.lookout is not None:
            made.looks_out = session.lookout.stretch(steps, parts)
        return made

    def missed(self) -> None:
        """An update has not told all of its gradients: from now on they are collected."""
        self._missed = True

    def over(self, number: int, steps: Passed, noted_ns: int) -> None:
        """A stretch is over: all that is done in a step that nobody looks at, for all of its steps. To note one of them
        took ``noted_ns``, if that is known."""
        session, start = self._session, _counter()
        if noted_ns and steps.whole > _CAREFUL:
            self._noted.append(noted_ns)
        self._replay(number, steps)
        if session.lookout is not None:
            session.lookout.sentries.stretched_until(session.step)
        # Begun in vain, again and again: the next is tried later and later. Once may be the end of an epoch.
        self._vain = 0 if steps.begun > 1 else self._vain + 1
        self._from = session.step + (min(_WAIT << self._vain, _LONGEST) if self._vain > 1 else 0)
        around = _AROUND_NORMS if session.takes_norms else _AROUND
        session.correct(_counter() - start + int(around * median(self._noted)) * steps.begun)

    def _replay(self, number: int, steps: Passed) -> None:
        session, whole = self._session, steps.whole
        if whole:
            session.steps_passed(number, steps)
        under_way = steps.backwards(range(whole, whole + 1))
        if under_way:
            session.pass_on(steps.began[under_way[0]])
            session.begun(steps, len(under_way))
        elif steps.entered:
            session.pass_on(steps.entered)


def _tells(optimizer: Any) -> bool:
    """Whether its update hands on all of its gradients, as a backward has left them: torch's own do in lists where they
    apply many at once. That of Nesterov writes into those of one group before it comes to the next."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    return not any(
        group.get("nesterov") or (group.get("foreach") is False and not group.get("fused"))
        for group in optimizer.param_groups
    )


def rate_of(optimizer: Any) -> Any:
    """The learning rate of its first group."""
    groups = optimizer.param_groups
    return groups[0].get("lr") if groups else None
