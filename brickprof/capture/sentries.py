"""Which stretches of steps have a sentry: every one, or one of so many where that does not fit the budget.

Enters: from the lookout, what it has learnt of the outputs in a step outside of stretches; from a sentry or a patrol
that is over, what was counted and how long it took. Leaves: who looks out in the next one; and when what was counted
has come home, the first step in which an output was not finite.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import nn

from brickprof.capture.outputs import Left, Output, Seen
from brickprof.capture.sentry import Counted, Found, Glance, Sentry
from brickprof.capture.surroundings import hands_off
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
LAUNCH_NS = 5_000
"""What a device has to do to count behind a finite loss."""
_REST = 1024
"""Steps for which no stretch has one where none fits the budget, or nothing could be counted."""
_VAIN, _MOST_UNREAD = 3, 3
_LATELY = 64
"""Steps within which there was a stretch, where there are any."""
_MOST_NUMBERS = 4096
"""That are fetched at once: more would count as full statistics."""
_Kind = TypeVar("_Kind", bound=Sentry)
Arrived = Callable[[int, int, Sequence[Seen], list[list[int]]], None]
"""Told step, micro-batch, outputs in the order of the forward, and (nan, inf) of each."""


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
