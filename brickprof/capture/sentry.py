"""Looks out over block outputs in a stretch of steps that are only noted (see ``stretch``).

Enters: from the lookout, what it has learnt of the outputs in a step outside of stretches; then each backward of a
stretch, with its loss. Leaves: when the stretch is over and what was counted has come home, the first step in which an
output was not finite.

A training whose host is busy has none of our code in a cache, and every line of it takes several times as long as it
should. So a hook does next to nothing here: a weak reference. Whatever else has to be known of an output was learnt
before (how often it was written into by the time its block put it out, whether the next block was given it), and what
is not as it was then is not counted. A look is one launch, and where the outputs lie where they lay in the step before
nothing else is sent; what is counted stays on the device, added to a table that nobody reads until the stretch is over.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from brickprof.capture import tensors
from brickprof.capture.outputs import Left, Output, Seen, claimed
from brickprof.capture.surroundings import hands_off
from brickprof.operators.launch import INFINITE

if TYPE_CHECKING:
    from brickprof.capture.lookout import Lookout

_SHARE = 0.5
"""Of the budget: what looking out in a step may cost."""
_LONGEST = 32
_MIDDLE, _ENOUGH = 5, 3
"""Stretches by whose costs it is decided how many there are to be with a sentry, and how many it takes for that."""
_TIMED_FROM = 1
"""The step of a stretch behind whose backward hooks begin to be timed, until that of the next."""
_AROUND = 3.0
"""A hook takes so many times what it takes inside: torch calls a module that has one in a longer way."""
_ALIGNED = 16
_counter = time.perf_counter_ns
_Tensor = torch.Tensor
Arrived = Callable[[int, int, Sequence[Seen], list[list[int]]], None]
"""Told step, micro-batch, outputs in the order of the forward, and (nan, inf) of each."""


class Known(NamedTuple):
    """What was learnt of the output of a block."""

    version: int
    before: int | None
    """The brick whose output this block was given."""


class Sentries:
    """When a stretch has a sentry: every one, or one of so many where that does not fit the budget."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._known: dict[int, Known] = {}
        self._device = -1
        self._standing: Sentry | None = None
        self._duty = 1
        """One stretch of so many has one."""
        self._stretches = 0
        self._hooks_ns: deque[float] = deque(maxlen=_MIDDLE)
        self._counts_ns: deque[float] = deque(maxlen=_MIDDLE)
        """What the hooks of a step took, and to count in it, some times."""

    @property
    def able(self) -> bool:
        """Whether it is in stretches that somebody looks out, as soon as one begins."""
        return bool(self._known) and bool(self._lookout.counts.compiled(self._device))

    @property
    def always(self) -> bool:
        return self._duty == 1 and self.able

    def learn(self, kept: Sequence[Output], left: Left, device: int) -> None:
        """These were put out in a step that is over, and were counted on ``device``."""
        bricks = [output[4] for output in kept]
        known: dict[int, Known] = {}
        for place, value in zip(left.places, left.values, strict=True):
            if bricks.count(bricks[place]) == 1 and value.requires_grad:
                known[bricks[place]] = Known(kept[place][1], bricks[place - 1] if kept[place][5] else None)
        self._known, self._device = known, device

    def forget(self) -> None:
        """The blocks are others, or there are none to be hooked any more."""
        self._known = {}
        if self._standing is not None:
            self._standing.dismiss()

    def post(self, blocks: Iterable[tuple[nn.Module, int]], steps: int, *, young: bool) -> Sentry | None:
        """A stretch of ``steps`` begins; a ``young`` run has a sentry in each."""
        if self._standing is not None:
            self._standing.dismiss()
        if not self.able:
            return None
        self._stretches += 1
        if not young and self._stretches % self._duty:
            return None
        hooked = [(module, brick) for module, brick in blocks if brick in self._known]
        self._standing = Sentry(self, self._lookout, hooked, self._known, steps)
        return self._standing

    def over(self, took: Sequence[int], hooks_ns: float, steps: int, *, young: bool) -> None:
        """A stretch is over, in which to count took so long in some steps."""
        self._standing = None
        session, cadence = self._lookout.session, self._lookout.session.cadence
        if hooks_ns:
            self._hooks_ns.append(hooks_ns)
        # In the middle: now and then the device has no place in its queue, for us nor for the training.
        usual = median(took) if took else 0.0
        if took:
            self._counts_ns.append(usual)
        hooks = median(self._hooks_ns) if self._hooks_ns else 0.0
        ours = int(usual * len(took) + hooks * steps)
        if young:
            session.charge_start(ours)
        else:
            session.correct(ours)
        host = hooks + (median(self._counts_ns) if self._counts_ns else 0.0)
        room = _SHARE * cadence.budget * max(cadence.typical_ns, 1.0) * cadence.ease
        self._duty = 1
        while self._duty < _LONGEST and host > self._duty * room and len(self._counts_ns) >= _ENOUGH:
            self._duty *= 2


class Sentry:
    """In one stretch. Nothing raises here, and no tensor of the script's lives longer for it."""

    __slots__ = (
        "_bricks", "_counts", "_glances", "_handles", "_known", "_lookout", "_most", "_out", "_rows", "_seen",
        "_sentries", "_shown", "_steps", "_took", "_young", "hooks_ns", "inside_ns", "spent_ns", "timing",
    )  # fmt: skip

    def __init__(
        self, sentries: Sentries, lookout: Lookout, blocks: Sequence[tuple[nn.Module, int]],
        known: Mapping[int, Known], steps: int,
    ) -> None:  # fmt: skip
        self._sentries = sentries
        self._lookout = lookout
        self._counts = lookout.counts
        self._known = known
        self._steps = steps + 1  # the one behind the last may begin before anybody notices
        self._young = lookout.young
        self._most = len(blocks)
        self._out: torch.Tensor | None = None
        """(nan, inf) of each output, so many for each step."""
        self._bricks: list[int] = []
        self._rows: list[int] = []
        self._shown: list[Seen] = []
        """What was counted last: of which bricks, where and how large, and the same in words."""
        self._seen: dict[int, list[Seen]] = {}
        """By the place of the step."""
        self._took: list[int] = []
        self.timing = False
        self.inside_ns = 0
        self.hooks_ns = 0.0
        self.spent_ns = 0
        self._glances: dict[int, weakref.ref[torch.Tensor]] = {}
        """What each block put out last."""
        self._handles = [module.register_forward_hook(_glance(self, brick, self._glances)) for module, brick in blocks]

    def dismiss(self) -> None:
        """No hook of it is left."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._glances.clear()

    def backward(self, loss: torch.Tensor, place: int) -> None:
        """One begins with ``loss``, in the step of that ``place``."""
        start = _counter()
        try:
            if self._glances and self._count(loss, place):
                self._took.append(_counter() - start)
            self._glances.clear()
            if self.timing:
                self.timing, self.hooks_ns = False, _AROUND * self.inside_ns
            if place == _TIMED_FROM:
                self.timing, self.inside_ns = True, 0
        except Exception as error:
            self._glances.clear()
            self._lookout.failed(error)
        self.spent_ns += _counter() - start

    def update(self) -> None:
        """What was put out since the backward began was recomputed in it."""
        self._glances.clear()

    def over(self, first: int) -> None:
        """The stretch is over, whose first step was ``first``."""
        try:
            self.dismiss()
            self._sentries.over(self._took, self.hooks_ns, len(self._seen), young=self._young)
            self._lookout.looks += len(self._took)
            if self._out is not None:
                arrived, seen, most = self._lookout.arrived, self._seen, self._most
                self._lookout.session.readback.read(self._out, lambda host: _tell(arrived, host, first, seen, most))
        except Exception as error:
            self._lookout.failed(error)

    def _count(self, loss: torch.Tensor, place: int) -> bool:
        device, counts = loss.get_device(), self._counts
        if place >= self._steps or not counts.compiled(device) or loss.data_ptr() % _ALIGNED or hands_off():
            return False
        bricks, values, rows = self._left(device, counts.readable)
        if not 0 < len(bricks) <= self._most:
            return False
        if self._out is None:
            self._out = torch.zeros((self._steps * self._most, 2), dtype=torch.int64, device=loss.device)
        counts.add(loss.detach(), values, rows, self._out, place * self._most)
        if rows != self._rows or bricks != self._bricks:
            self._rows, self._bricks, self._shown = rows, bricks, self._described(bricks, values)
        self._seen[place] = self._shown
        return True

    def _left(
        self, device: int, readable: Callable[[torch.Tensor], bool]
    ) -> tuple[list[int], list[torch.Tensor], list[int]]:
        """Outputs that are still there, as they were put out: their bricks, themselves, and where and how large."""
        known, limits, claim = self._known, INFINITE, claimed
        bricks: list[int] = []
        values: list[torch.Tensor] = []
        rows: list[int] = []
        for brick, reference in self._glances.items():
            value = reference()
            if value is None:
                continue
            claim(value)
            limit = limits.get(value.dtype)
            if value._version != known[brick].version or not value.requires_grad:
                continue
            if limit is None or value.get_device() != device or not (value.is_contiguous() or readable(value)):
                continue
            bricks.append(brick)
            values.append(value)
            rows += (value.data_ptr(), value.numel(), limit)
        return bricks, values, rows

    def _described(self, bricks: Sequence[int], values: Sequence[torch.Tensor]) -> list[Seen]:
        before: int | None = None
        found = []
        for brick, value in zip(bricks, values, strict=True):
            follows = before is not None and self._known[brick].before == before
            found.append(Seen(brick, value.numel(), value.dtype, follows))
            before = brick
        return found


def _glance(sentry: Sentry, brick: int, glances: dict[int, weakref.ref[torch.Tensor]]) -> Callable[..., None]:
    weakly = weakref.ref

    def glance(_module: Any, _args: Any, output: Any) -> None:
        start = _counter() if sentry.timing else 0
        try:
            glances[brick] = weakly(output if type(output) is _Tensor else tensors.first_tensor(output))  # type: ignore[arg-type]
        except Exception:  # without a tensor
            return
        if start:
            sentry.inside_ns += _counter() - start

    return glance


def _tell(arrived: Arrived, host: torch.Tensor, first: int, seen: dict[int, list[Seen]], most: int) -> None:
    """The first step in which anything was broken: those behind it are for the same reason."""
    if not bool(host.any()):
        return
    for place, outputs in seen.items():
        counts = host[place * most : place * most + len(outputs)].tolist()
        if any(nan or inf for nan, inf in counts):
            arrived(first + place, 0, outputs, counts)
            return
