"""Looks out over block outputs in a stretch of steps that are only noted (see ``stretch``).

Enters: what is known of the outputs from steps outside of stretches; then each backward of a stretch, with its loss.
Leaves: when the stretch is over, what was counted in them, still on the device.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from brickprof.capture import tensors
from brickprof.capture.outputs import Seen, claimed
from brickprof.capture.surroundings import capturing, hands_off
from brickprof.operators.launch import FLOATS, KIND

if TYPE_CHECKING:
    from brickprof.capture.lookout import Lookout
    from brickprof.capture.sentries import Sentries

_TIMED_FROM = 0
"""The step of a stretch behind whose backward hooks begin to be timed, until that of the next."""
_AROUND = 3.0
"""A hook takes so many times what it takes inside: torch calls a module that has one in a longer way. There is less
inside than in the lookout's, and so it is more times that."""
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
Glance = tuple[int, "weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor] | None"]
"""The brick of a block, what it has put out, and what it was given."""


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
