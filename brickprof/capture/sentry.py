"""Looks out over block outputs in a stretch of steps that are only noted (see ``stretch``).

Enters: from the lookout, what it has learnt of the outputs in a step outside of stretches; then each backward of a
stretch, with its loss. Leaves: when the stretch is over and what was counted has come home, the first step in which an
output was not finite.

A training whose host is busy has none of our code in a cache, and every line of it takes several times as long as it
should. So a hook does next to nothing here: weak references. Whatever else has to be known of an output was learnt
before (how often it was written into by the time its block put it out), and what is not as it was then is not counted.
A look is one launch and nothing else; what is counted stays on the device, added to a table that nobody reads until
the stretch is over.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import attrgetter, is_
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import nn

from brickprof.capture import tensors
from brickprof.capture.outputs import Left, Output, Seen, claimed
from brickprof.capture.surroundings import capturing, hands_off
from brickprof.operators.launch import FLOATS, KIND
from brickprof.operators.likeness import likeness

if TYPE_CHECKING:
    from brickprof.capture.lookout import Lookout

_SHARE = 1.0
"""Of the budget: what looking out in every step may cost, whatever else comes out dear, since nothing else knows the
block. What else is looked at has what is left, or is as rare as it can be."""
_PARTLY = 0.7
"""The same where that is not enough, and it is some stretches that have a sentry."""
_LEAST_EASE = 0.5
"""Of that it keeps so much where the whole comes out dearer than the budget."""
_LONGEST = 32
_MIDDLE, _ENOUGH = 5, 3
"""Stretches by whose costs it is decided how many there are to be with a sentry, and how many it takes for that."""
_TIMED_FROM = 0
"""The step of a stretch behind whose backward hooks begin to be timed, until that of the next."""
_AROUND = 3.0
"""A hook takes so many times what it takes inside: torch calls a module that has one in a longer way. There is less
inside than in the lookout's, and so it is more times that."""
LAUNCH_NS = 5_000
"""What a device has to do to count behind a finite loss."""
_REST = 1024
"""Steps for which no stretch has one where none fits the budget, or nothing could be counted."""
_VAIN, _MOST_UNREAD = 3, 3
_LATELY = 64
"""Steps within which there was a stretch, where there are any."""
_MOST_NUMBERS = 4096
"""That are fetched at once: more would count as full statistics."""
_ALIGNED = 16
_LOWEST = 1 << 32
"""No device has memory below. What was given back, to be computed again, begins at 0."""
_ROW = 16
"""Bytes of a row of counts."""
_counter = time.perf_counter_ns
_Tensor = torch.Tensor
_pointer, _version = torch.Tensor.data_ptr, attrgetter("_version")
_traced = torch.compiler.is_dynamo_compiling
_grad_on = torch.is_grad_enabled
_thread = threading.get_ident
_Kind = TypeVar("_Kind", bound="Sentry")
Glance = tuple[int, "weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor] | None"]
"""The brick of a block, what it has put out, and what it was given."""
Arrived = Callable[[int, int, Sequence[Seen], list[list[int]]], None]
"""Told step, micro-batch, outputs in the order of the forward, and (nan, inf) of each."""


class Outputs(NamedTuple):
    """What was counted in a step, in the order of the forward."""

    bricks: Sequence[int]
    places: list[int]
    """Of each: where it lies, and four times its elements plus its kind."""
    follow: list[bool]
    """Whether each block was given the output before."""
    asked: Sequence[tuple[str, ...]] | None
    """See ``Seen``; None of what blocks have put out themselves."""

    def seen(self) -> list[Seen]:
        told = zip(self.bricks, self.places[1::2], self.follow, self.asked or repeat(None), strict=False)
        return [Seen(brick, size >> 2, FLOATS[size & 3], follows, asked) for brick, size, follows, asked in told]


class Counted(NamedTuple):
    """What was counted in some steps, on the device."""

    out: torch.Tensor
    seen: dict[int, Outputs]
    moments: dict[int, tuple[int, int]]
    """By the place of a backward: its step and micro-batch."""
    most: int


Found = tuple[Sequence[int], list[int], list[bool], "Sequence[tuple[str, ...]] | None"]
"""What goes into ``Outputs``."""


class Alike(NamedTuple):
    """The outputs of a look in which all could be counted, and what tells whether others are like them."""

    device: int
    bricks: tuple[int, ...]
    versions: list[int]
    places: list[int]
    """As in ``Outputs``."""
    check: Callable[..., bool]


class Sentries:
    """When a stretch has a sentry: every one, or one of so many where that does not fit the budget."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._known: dict[int, int] = {}
        """By the brick, in the order of the forward: the version that its output has when it is put out."""
        self._device = -1
        self._learnt_in = -1
        """The step in which that was learnt."""
        self._deaf_until = 0
        """The step from which on something is learnt again."""
        self._stretched_until = 0
        self._over_at = -_LATELY
        """The step in which a stretch was over that had one."""
        self._vain = 0
        """Stretches in a row in which nothing could be counted."""
        self._handed: tuple[int, dict[int, Glance]] = (0, {})
        """What was put out behind the last backward of a stretch, for the step of that number."""
        self.alike: Alike | None = None
        self._sizes: list[int] = []
        """Of the last outputs that were looked at one by one."""
        self._unread: list[Counted] = []
        self._standing: Sentry | None = None
        self._part = 1.0
        """So many of all stretches have one."""
        self._owed: dict[type[Sentry], float] = {}
        """What is left of that from those so far, and from patrols."""
        self._judged = 0
        self._hooks_ns: deque[float] = deque(maxlen=_MIDDLE)
        self._counts_ns: deque[float] = deque(maxlen=_MIDDLE)
        """What the hooks of a step took, and to count in it, some times."""
        self._behind: deque[bool] = deque(maxlen=_MIDDLE)
        """Whether the device was behind, in some."""

    @property
    def able(self) -> bool:
        """Whether it is in stretches that somebody looks out, as soon as one begins."""
        return bool(self._known) and bool(self._lookout.counts.compiled(self._device))

    @property
    def longest(self) -> int:
        """The backwards of a stretch that what is counted has room for."""
        return max(_MOST_NUMBERS // (2 * max(len(self._known), 1)) - 1, 2)

    @property
    def stretched(self) -> bool:
        """Whether there are stretches, or may be: the run has only begun."""
        return self._lookout.session.step - self._stretched_until < _LATELY

    def stretched_until(self, step: int) -> None:
        """A stretch begins that is to be over in ``step``, with a sentry or without."""
        self._stretched_until = step

    @property
    def always(self) -> bool:
        """Whether every stretch has one, and there are stretches."""
        return self._part >= 1 and self.able and self._lookout.session.step - self._over_at < _LATELY

    def learn(self, kept: Sequence[Output], left: Left, device: int) -> None:
        """These were put out in a step that is over, and were counted on ``device``."""
        if self._lookout.session.step < self._deaf_until:
            return
        bricks = [output[4] for output in kept]
        found = {
            bricks[place]: kept[place][1]
            for place, value in zip(left.places, left.values, strict=True)
            if bricks.count(bricks[place]) == 1 and value.requires_grad
        }
        step, number = self._lookout.session.step, self._lookout.session.steps.backwards
        again = device == self._device and (step == self._learnt_in or number > 1)  # not the first of its step
        known = {**self._known, **found} if again else found
        if known != self._known:
            self._known, self.alike = known, None
        self._learnt_in, self._device = step, device

    def learn_number(self, outputs: int, device: int) -> None:
        """So many were counted on ``device``, inside of compiled code: the number is all that has to be known there."""
        if self._lookout.session.step >= self._deaf_until and (outputs > len(self._known) or device != self._device):
            self._known, self.alike, self._device = dict.fromkeys(range(outputs), 0), None, device

    def forget(self) -> None:
        """The blocks are others, or there are none to be hooked any more."""
        self._known, self.alike = {}, None
        if self._standing is not None:
            self._standing.dismiss()

    def post(
        self, blocks: Iterable[tuple[nn.Module, int]], steps: int, per_step: int, *, young: bool,
        kind: type[Sentry] | None = None,
    ) -> Sentry | None:  # fmt: skip
        """A stretch of ``steps`` begins; a ``young`` run has a sentry in each."""
        made = self.appoint(kind or Sentry, blocks, steps, per_step, young=young)
        if made is None:
            return None
        step, glances = self._handed
        if step == self._lookout.session.step + 1:
            made.glances.update(glances)
        self._handed = (0, {})
        return made

    def appoint(
        self, kind: type[_Kind], blocks: Iterable[tuple[nn.Module, int]], steps: int, per_step: int, *, young: bool
    ) -> _Kind | None:
        """One for so many ``steps`` of so many backwards, if it is time for one."""
        if self._standing is not None:
            self._standing.dismiss()
        if not self.able:
            return None
        self.fetch(None)
        owed = self._owed.get(kind, 0.0) + self._part
        self._owed[kind] = owed % 1.0
        if not young and owed < 1:
            return None
        hooked = [(module, brick) for module, brick in blocks if brick in self._known]
        made = kind(self, self._lookout, hooked, self._known, steps, per_step)
        self._standing = made
        return made

    def found(self, device: int, seen: Found, values: Sequence[torch.Tensor]) -> None:
        """All outputs were looked at, one by one: as soon as that finds the same sizes twice in a row, others are
        compared with them."""
        bricks, places, _, _ = seen
        sizes, self._sizes = self._sizes, places[1::2]
        if sizes == self._sizes:
            versions = [self._known[brick] for brick in bricks]
            self.alike = Alike(device, tuple(bricks), versions, list(places), likeness(values))

    def fetch(self, counted: Counted | None) -> None:
        """Sends for what was counted, unless it is somebody else's moment: then it waits for the next."""
        if counted is not None:
            self._unread = [*self._unread[-_MOST_UNREAD:], counted]
        if not self._unread or hands_off():
            return
        unread, self._unread = self._unread, []
        for each in unread:
            self._lookout.session.readback.read(each.out, _told(self._lookout.arrived, each))

    def hand_over(self, step: int, glances: dict[int, Glance]) -> None:
        """A stretch is over in the middle of ``step``: another may follow at once."""
        self._handed = (step, dict(glances))

    @property
    def hidden(self) -> bool:
        """Whether the device always has something left to do while the host does this: no step is longer for it."""
        return len(self._behind) >= _ENOUGH and 2 * sum(self._behind) > len(self._behind)

    def over(
        self, took: Sequence[int], hooks_ns: float, backwards: int, per_step: int = 1, *, young: bool,
        behind: bool | None = None,
    ) -> None:  # fmt: skip
        """A stretch is over, of so many ``backwards``, in some of which to count took so long; ``behind``: whether the
        device was, in one of them."""
        session = self._lookout.session
        self._over_at = session.step + -(-backwards // per_step)  # they are told after this
        self._time(took, hooks_ns, behind)
        usual = median(took) if took else 0.0
        ours = LAUNCH_NS * len(took) if self.hidden else int(usual * len(took) + self.hooks_ns * backwards)
        if young:
            session.charge_start(ours)
        else:
            session.correct(ours)
        self._judge(bool(took) or not backwards, self._over_at, per_step, young=young)

    def relieved(
        self, took: Sequence[int], hooks_ns: float, backwards: int, steps: float, *, young: bool,
        behind: bool | None = None,
    ) -> None:  # fmt: skip
        """The same of so many ``backwards`` outside of stretches, in about so many ``steps``, which have been paid for
        already."""
        self._time(took, hooks_ns, behind)
        if backwards:
            each = max(round(backwards / max(steps, 1)), 1)
            self._judge(bool(took), self._lookout.session.step, each, young=young)

    @property
    def hooks_ns(self) -> float:
        """What hooks take in a forward."""
        return median(self._hooks_ns) if self._hooks_ns else 0.0

    @property
    def counts_ns(self) -> float:
        """What it takes to count behind it."""
        return median(self._counts_ns) if self._counts_ns else 0.0

    def _time(self, took: Sequence[int], hooks_ns: float, behind: bool | None) -> None:
        self._standing = None
        if hooks_ns:
            self._hooks_ns.append(hooks_ns)
        if behind is not None:
            self._behind.append(behind)
        elif self._behind:
            self._behind.popleft()  # nobody knows any more
        if took:
            # In the middle: now and then the device has no place in its queue, for us nor for the training.
            self._counts_ns.append(median(took))

    def _judge(self, counted: bool, step: int, backwards: int, *, young: bool) -> None:
        """How many of the next are to have one."""
        cadence = self._lookout.session.cadence
        self._vain = 0 if counted else self._vain + 1
        self._judged += 1
        host = 0.0 if self.hidden else backwards * (self.hooks_ns + self.counts_ns)
        budget = cadence.budget * max(cadence.typical_ns, 1.0)
        room = max(cadence.ease, _LEAST_EASE) * _PARTLY * budget
        fits = self._judged < _ENOUGH or host <= _SHARE * budget
        self._part = 1.0 if fits else max(room / host, 1 / _LONGEST)
        too_dear = not fits and host > _LONGEST * _PARTLY * budget and not young
        if self._vain >= _VAIN or too_dear:
            self._deaf_until, self._vain = step + _REST, 0
            self.forget()


class Sentry:
    """In one stretch. Nothing raises here, and no tensor of the script's lives longer for it."""

    __slots__ = (
        "_back", "_backwards", "_begins", "_behind", "_captures", "_counts", "_device", "_handles", "_known", "_lane",
        "_launches", "_lookout", "_mark", "_most", "_out", "_per_step", "_room", "_seen", "_sentries", "_stream",
        "_took", "_young", "further", "glances", "hooks_ns", "inside_ns", "session", "spent_ns", "thread", "timing",
        "within",
    )  # fmt: skip

    def __init__(
        self, sentries: Sentries, lookout: Lookout, blocks: Sequence[tuple[nn.Module, int]],
        known: Mapping[int, int], steps: int, per_step: int,
    ) -> None:  # fmt: skip
        self._sentries = sentries
        self._lookout = lookout
        self._counts = lookout.counts
        self._known = known
        self.session = lookout.session
        self.thread = lookout.session.thread
        self.within = self.further = False
        """Whether a backward is under way, or its update has still to come: what is put out is recomputed. But not
        where there is a further one, that was not to be expected: then it is that one's."""
        self._most = max(len(blocks), 1)
        self._per_step = per_step
        # One more: that behind the last may begin before anybody notices.
        self._room = steps * per_step + 1
        self._young = lookout.young
        self._backwards = 0
        self._lane = lookout.session.readback.lane
        self._stream: Any = None
        self._mark: Any = None
        """The end of the step whose hooks were timed, in the stream of its loss."""
        self._behind: bool | None = None
        """Whether the device had not come to it when the next forward was over."""
        self._out: torch.Tensor | None = None
        """(nan, inf) of each output, so many for each backward."""
        self._begins = 0
        """Where that lies."""
        self._device: int | None = None
        self._captures: Callable[[], bool] = hands_off
        self._launches: dict[int, Callable[..., None]] = {}
        """By the number of outputs, on that device."""
        self._seen: dict[int, Found] = {}
        """By the place of the backward."""
        self._took: list[int] = []
        self.timing = False
        self.inside_ns = 0
        self.hooks_ns = 0.0
        self.spent_ns = 0
        self.glances: dict[int, Glance] = {}
        """What each block has put out last since the last backward, and was given; in the order of these calls."""
        self._back: tuple[Glance, ...] = ()
        self._handles: list[Any] = []
        try:
            for module, brick in blocks:
                self._handles.append(module.register_forward_hook(_glance(self, brick, self.glances)))
        except BaseException:
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """No hook of it is left."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self.glances.clear()

    def backward(self, loss: torch.Tensor, place: int) -> None:
        """One begins with ``loss``, that of this ``place``."""
        start = _counter()
        self._backwards += 1
        self.within = True
        try:
            if self._waits and self._count(loss, place):
                self._took.append(_counter() - start)
            self.glances.clear()
            if self._mark is not None:
                mark, self._mark = self._mark, None
                self._behind = None if hands_off() else not mark.query()
            if self.timing:
                self.timing, self.hooks_ns = False, _AROUND * self.inside_ns
                self._stream = self._lane.stream(loss)
            if place == _TIMED_FROM:
                self.timing, self.inside_ns = True, 0
        except Exception as error:
            self.glances.clear()
            self._lookout.failed(error)
        self.spent_ns += _counter() - start

    @property
    def _waits(self) -> bool:
        """Whether there is anything to be counted."""
        return bool(self.glances)

    def update(self) -> None:
        """What was put out since the backward began was recomputed in it."""
        self.glances.clear()
        self.within = False
        if self._stream is not None:
            stream, self._stream = self._stream, None
            with suppress(Exception):
                self._mark = None if hands_off() else self._lane.mark(stream)

    def over(self, first: int) -> None:
        """The stretch is over, whose first step was ``first``."""
        start = _counter()
        try:
            each = self._per_step
            self._back = tuple(self.glances.values()) if self.further else ()
            none_left = self.within or self.further
            self._sentries.hand_over(first + self._backwards // each, {} if none_left else self.glances)
            self.dismiss()
            self._lookout.looks += len(self._took)
            self._fetch({place: (first + place // each, place % each) for place in self._seen})
            told = self._took, self.hooks_ns, self._backwards, each
            self._sentries.over(*told, young=self._young, behind=self._behind)
        except Exception as error:
            self._lookout.failed(error)
        self._lookout.session.correct(_counter() - start + self.spent_ns - sum(self._took))

    def hand_back(self) -> None:
        """The stretch is dealt with, and a further backward begins, if that was what has ended it."""
        back, self._back = self._back, ()
        if back:
            self._lookout.take(back, self._known)

    def _fetch(self, moments: dict[int, tuple[int, int]]) -> None:
        counted = None
        if self._out is not None and self._seen:
            seen = {place: Outputs(*each) for place, each in self._seen.items()}
            counted = Counted(self._out, seen, moments, self._most)
        self._sentries.fetch(counted)

    def _count(self, loss: torch.Tensor, place: int) -> bool:
        device, gate = loss.get_device(), loss.data_ptr()
        if gate % _ALIGNED or place >= self._room or loss.dtype is not torch.float32 or loss.numel() != 1:
            return False
        if (device != self._device and not self._settle(loss, device)) or self._captures():
            return False
        seen = self._seen_of(loss, device)
        count, row = len(seen[0]), place * self._most
        if not count or self._out is None:
            return False
        launch = self._launches.get(count)
        if launch is None:
            self._counts.add(loss.detach(), seen[1], self._out, row)
            if (launch := self._counts.settled(device, count)) is not None:
                self._launches[count] = launch
        else:
            launch(gate, self._begins + row * _ROW, *seen[1])
        self._seen[place] = seen
        return True

    def _settle(self, loss: torch.Tensor, device: int) -> bool:
        """The first loss: what is counted will lie on its ``device``. False for any other."""
        if self._out is not None or not self._counts.compiled(device) or hands_off():
            return False
        self._out = torch.zeros((self._room * self._most, 2), dtype=torch.int64, device=loss.device)
        self._begins, self._device, self._captures = self._out.data_ptr(), device, capturing(device)
        return True

    def _seen_of(self, _loss: torch.Tensor, device: int) -> Found:
        return self._as_before(device) or self._left(device)

    def _as_before(self, device: int) -> Found | None:
        """Outputs that are like those of an earlier step, all of them: nothing else is asked of each but where it lies,
        and how often it was written into."""
        alike, glances = self._sentries.alike, self.glances.values()
        if alike is None or len(glances) != len(alike.bricks) or device != alike.device:
            return None
        bricks, references, given = zip(*glances, strict=True)
        values = [reference() for reference in references]
        if bricks != alike.bricks or not alike.check(*values):
            return None
        pointers = list(map(_pointer, values))
        if min(pointers) < _LOWEST or list(map(_version, values)) != alike.versions:
            return None
        places = alike.places.copy()
        places[::2] = pointers
        return bricks, places, [False, *map(is_, given[1:], references)], None

    def _left(self, device: int) -> Found:
        """Outputs that are still there, as they were put out; whose memory somebody has put there (``out.data``)
        nobody asks."""
        kinds, claim, versions = KIND, claimed, self._known
        bricks: list[int] = []
        places: list[int] = []
        follow: list[bool] = []
        values: list[torch.Tensor] = []
        last: Any = self  # no reference is that
        for brick, reference, given in self.glances.values():
            value, before, last = reference(), last, self
            if type(value) is not _Tensor:
                continue
            claim(value)
            try:
                kind, pointer = kinds.get(value.dtype), value.data_ptr()
                if kind is None or pointer < _LOWEST or value._version != versions.get(brick):
                    continue
            except RuntimeError:  # of an inference, or without memory of its own
                continue
            if value.get_device() != device or not value.requires_grad:
                continue
            if not (value.is_contiguous() or self._counts.readable(value)):
                continue
            last = reference
            bricks.append(brick)
            values.append(value)
            follow.append(given is before)
            places += (pointer, value.numel() << 2 | kind)
        seen = bricks, places, follow, None
        if values and len(values) == len(self.glances):
            self._sentries.found(device, seen, values)
        return seen


def _glance(sentry: Sentry, brick: int, glances: dict[int, Glance]) -> Callable[..., None]:
    """Asks as little as there can be. What is recomputed in a backward is put out by a thread of autograd's, or cleared
    behind it."""
    weakly, home, drop = weakref.ref, sentry.thread, glances.pop

    def glance(_module: Any, args: Any, output: Any) -> None:
        if _traced() or not _grad_on() or _thread() != home:
            return
        start = _counter() if sentry.timing else 0
        try:
            found: Any = output if type(output) is _Tensor else tensors.first_tensor(output)
            given = args[0] if args else None
            drop(brick, None)  # in the order of the last calls
            # Of one tensor there is one such reference: it tells whether the two are the same.
            glances[brick] = brick, weakly(found), weakly(given) if type(given) is _Tensor else None
        except Exception:  # without a tensor
            return
        if start:
            sentry.inside_ns += _counter() - start

    return glance


def _told(arrived: Arrived, counted: Counted) -> Callable[[torch.Tensor], None]:
    """Tells of the first step in which anything was broken: those behind it are for the same reason."""
    _, seen, moments, most = counted

    def tell(host: torch.Tensor) -> None:
        if not bool(host.any()):
            return
        for place, outputs in seen.items():
            counts = host[place * most : place * most + len(outputs.bricks)].tolist()
            if any(nan or inf for nan, inf in counts):
                arrived(*moments[place], outputs.seen(), counts)
                return

    return tell
